# Writes OUT: every DIR/*.json as a byte array, in the order of their names (known.h has the type).
file(GLOB files ${DIR}/*.json)
list(SORT files)
set(arrays "")
set(rows "")
set(n 0)
foreach(path ${files})
  get_filename_component(file ${path} NAME)
  string(REGEX REPLACE "\\.json$" "" name ${file})
  file(READ ${path} hex HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  string(REGEX REPLACE "(....,....,....,....,....,....,....,....,....,....,....,....,....,....,....,....,)" "\\1\n" bytes
                       "${bytes}")
  string(APPEND arrays "static const unsigned char known_${n}[] = {\n${bytes}};\n")
  string(APPEND rows "    {\"${name}\", known_${n}, sizeof known_${n}},\n")
  math(EXPR n "${n} + 1")
endforeach()
file(WRITE ${OUT} "/* Made by known.cmake of tests/data/model-configs. */\n#include \"known.h\"\n\n${arrays}
const planner_known_model planner_known_models[] = {\n${rows}};
const size_t planner_known_count = sizeof planner_known_models / sizeof *planner_known_models;\n")
