# hybridge::hybridge, the C functions and the C++ header over them: the compiled libraries of a wheel (this folder is
# hybridge/runtime/native/cmake there) or of `hybridge bundle` (lib/cmake/hybridge). HYBRIDGE_FROM_SOURCE compiles the sources with
# the app instead, for its processor and over the ExecuTorch that is found.
option(HYBRIDGE_FROM_SOURCE "Compile hybridge with the app instead of linking to its compiled library" OFF)
if(TARGET hybridge::hybridge)
  return()
endif()
set(hybridge_folder ${CMAKE_CURRENT_LIST_DIR}/..)

if(HYBRIDGE_FROM_SOURCE)
  include(CMakeFindDependencyMacro)
  find_dependency(executorch CONFIG)
  if(NOT EXISTS ${hybridge_folder}/CMakeLists.txt)
    set(hybridge_NOT_FOUND_MESSAGE
        "HYBRIDGE_FROM_SOURCE is set, and a bundle has no sources: let CMAKE_PREFIX_PATH be what `hybridge native --cmake-prefix` says"
    )
  elseif(CMAKE_VERSION VERSION_LESS 3.24)
    set(hybridge_NOT_FOUND_MESSAGE
        "hybridge's sources need CMake 3.24, and this is ${CMAKE_VERSION}: install a newer one, or leave HYBRIDGE_FROM_SOURCE off"
    )
  elseif(NOT TARGET executorch::runtime AND NOT TARGET executorch) # installed package, or an app's own build of it
    set(hybridge_NOT_FOUND_MESSAGE
        "ExecuTorch's package has targets for CMake 3.28 and later only, and this is ${CMAKE_VERSION}; install a newer one, such as the package cmake for Python, or leave HYBRIDGE_FROM_SOURCE off"
    )
  else()
    add_subdirectory(${hybridge_folder} ${CMAKE_BINARY_DIR}/hybridge EXCLUDE_FROM_ALL)
    return()
  endif()
  set(hybridge_FOUND FALSE)
  return()
endif()

if(EXISTS ${hybridge_folder}/hybridge/hybridge.h)
  set(hybridge_include ${hybridge_folder})
  set(hybridge_libraries ${hybridge_folder}/../kernels/prebuilt)
else()
  set(hybridge_include ${hybridge_folder}/../../include)
  set(hybridge_libraries ${hybridge_folder}/..)
endif()
foreach(name IN ITEMS hybridge hybridge_kernels executorch_kernels_quantized)
  set(file ${hybridge_libraries}/${CMAKE_SHARED_LIBRARY_PREFIX}${name}${CMAKE_SHARED_LIBRARY_SUFFIX})
  if(NOT EXISTS ${file})
    set(hybridge_FOUND FALSE)
    set(hybridge_NOT_FOUND_MESSAGE
        "${file} is missing. In a checkout, `hybridge bundle FOLDER` compiles it, and CMAKE_PREFIX_PATH is FOLDER; HYBRIDGE_FROM_SOURCE=ON compiles the sources with the app"
    )
    return()
  endif()
  get_filename_component(file ${file} REALPATH)
  list(APPEND hybridge_files ${file})
endforeach()
list(POP_FRONT hybridge_files hybridge_core)

add_library(hybridge::hybridge SHARED IMPORTED)
set_target_properties(
  hybridge::hybridge PROPERTIES IMPORTED_LOCATION ${hybridge_core} INTERFACE_INCLUDE_DIRECTORIES ${hybridge_include}
)
# No program names a symbol of the kernels, which register themselves when they are loaded. Beside where it was built, a program
# looks for the libraries where it is shipped: in lib beside itself, or beside its folder.
if(APPLE)
  target_link_libraries(hybridge::hybridge INTERFACE ${hybridge_files})
  set(hybridge_origin @loader_path)
else()
  target_link_libraries(hybridge::hybridge INTERFACE -Wl,--push-state,--no-as-needed ${hybridge_files} -Wl,--pop-state)
  set(hybridge_origin $ORIGIN)
endif()
foreach(variable IN ITEMS CMAKE_BUILD_RPATH CMAKE_INSTALL_RPATH) # of the targets that the caller makes
  list(APPEND ${variable} ${hybridge_origin}/lib ${hybridge_origin}/../lib)
endforeach()
