# Precompiled libraries of the built-in shaders, where Apple's Metal compiler is: one <hash>.metallib a family, named by
# the SHA-256 of the text that Metal would be given, so that one that does not fit is not found. Without it the device
# compiles the sources when they are first used.
if(CMAKE_SCRIPT_MODE_FILE)
  # Script: METALLIB goes to FOLDER under its name by the hash of TEXT; older ones of its FAMILY go.
  file(SHA256 "${TEXT}" hash)
  file(MAKE_DIRECTORY "${FOLDER}/${FAMILY}")
  file(GLOB older "${FOLDER}/${FAMILY}/*.metallib")
  if(older)
    file(REMOVE ${older})
  endif()
  file(COPY_FILE "${METALLIB}" "${FOLDER}/${FAMILY}/${hash}.metallib")
  return()
endif()

find_program(METALANE_XCRUN xcrun)
if(NOT METALANE_XCRUN)
  return()
endif()
execute_process(COMMAND ${METALANE_XCRUN} -sdk macosx -f metal RESULT_VARIABLE no_metal OUTPUT_QUIET ERROR_QUIET)
if(no_metal)
  message(STATUS "Metal compiler not found: built-in shaders are compiled when they are first used")
  return()
endif()

set(metallib_dir ${generated}/metallib)
set(metallib_marks "")
foreach(family IN LISTS families)
  set(stem ${builtin_dir}/${family})
  add_custom_command(
    OUTPUT ${stem}.metallib
    COMMAND ${adapt} metal --family ${family} --out ${stem}.text.metal ${shader_root}/${family}.metal
            ${include_arguments}
    COMMAND ${METALANE_XCRUN} -sdk macosx metal -std=metal3.1 -fno-fast-math -c ${stem}.text.metal -o ${stem}.air
    COMMAND ${METALANE_XCRUN} -sdk macosx metallib ${stem}.air -o ${stem}.metallib
    COMMAND ${CMAKE_COMMAND} -DTEXT=${stem}.text.metal -DMETALLIB=${stem}.metallib -DFOLDER=${metallib_dir}
            -DFAMILY=${family} -P ${CMAKE_CURRENT_LIST_FILE}
    DEPENDS ${adapt} ${shader_root}/${family}.metal ${builtin_header_paths} ${CMAKE_CURRENT_LIST_FILE}
    COMMENT "Compiling shaders/${family}.metal for Metal"
    VERBATIM)
  list(APPEND metallib_marks ${stem}.metallib)
endforeach()
add_custom_target(metalane_metallibs ALL DEPENDS ${metallib_marks})
