// The selector's parameter structs, shared with the shader.
#pragma once

#include <metalane/params/dflash2_selector.h>
