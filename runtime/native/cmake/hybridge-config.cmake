# Of hybridge as Python's package has it: sources, which are compiled with the app and for its processor.
include(CMakeFindDependencyMacro)
find_dependency(executorch CONFIG)
if(NOT TARGET executorch::runtime AND NOT TARGET executorch) # installed package, or an app's own build of it
  set(hybridge_FOUND FALSE)
  set(hybridge_NOT_FOUND_MESSAGE
      "ExecuTorch's package has targets for CMake 3.28 and later only, and this is ${CMAKE_VERSION}; install a newer one, such as the package cmake for Python"
  )
  return()
endif()
if(NOT TARGET hybridge::c)
  add_subdirectory(${CMAKE_CURRENT_LIST_DIR}/.. ${CMAKE_BINARY_DIR}/hybridge EXCLUDE_FROM_ALL)
endif()
