// What GNUstep's headers include for blocks; the runtime is libblocksruntime.
#include <Block.h>
