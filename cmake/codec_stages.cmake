# Writes codec_stages.cc, the list of all codec stages, from what the files of src/codec/stages
# define, and adds it to kvik_codec. So a stage is added by adding its file (codec/registry.h).
function(kvik_codec_stages)
  file(GLOB stage_files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/codec/stages/*_stage.cc)
  list(SORT stage_files)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${stage_files})
  set(declarations "")
  set(addresses "")
  foreach(file ${stage_files})
    file(STRINGS ${file} lines REGEX "^const StageModule& [A-Za-z0-9]+Stage\\(\\)")
    if(NOT lines)
      message(FATAL_ERROR "${file} defines no `const StageModule& ...Stage()`, see codec/registry.h")
    endif()
    foreach(line ${lines})
      string(REGEX MATCH "[A-Za-z0-9]+Stage" name "${line}")
      string(APPEND declarations "const StageModule& ${name}();\n")
      string(APPEND addresses "      &${name}(),\n")
    endforeach()
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/codec_stages.cc @ONLY CONTENT [[
#include <vector>

#include "codec/stage.h"

namespace kvik::codec {

@declarations@
std::vector<const StageModule*> CollectStages();
std::vector<const StageModule*> CollectStages() {
  return {
@addresses@  };
}

}  // namespace kvik::codec
]])
  target_sources(kvik_codec PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/codec_stages.cc)
endfunction()
