# Of an installed hybridge: its targets, over the ExecuTorch that is found here.
include(CMakeFindDependencyMacro)
find_dependency(executorch CONFIG)
include(${CMAKE_CURRENT_LIST_DIR}/hybridge-targets.cmake)
