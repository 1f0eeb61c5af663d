# The kernels of src/backend/cuda/device/: each x.cu becomes a fat binary (machine code for the GPUs of today, PTX for
# later GPUs) that the assembler puts into the library. Nothing is linked with CUDA, and all further files compile without
# CUDA's headers; at run time the driver is looked up (src/backend/cuda/driver.h).
#
# TUTTI_CUDA: AUTO uses nvcc where installed; ON demands nvcc; OFF builds without kernels, for host ranks only.

set(TUTTI_CUDA AUTO CACHE STRING "Build the kernels for GPUs: AUTO (when nvcc is there), ON or OFF")
set(TUTTI_CUDA_ARCHITECTURES 80 90 100 CACHE STRING
    "Compute capabilities to build machine code for; GPUs newer than the last get its PTX. native: those of the GPUs here")
set(TUTTI_HAVE_CUDA OFF)

# Sets `result` to the compute capabilities of this machine's GPUs, as nvcc counts them (90), as far as Tutti serves them
# and this nvcc knows them. Empty where the machine has no such GPU.
function(tutti_native_architectures result)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE here ERROR_QUIET RESULT_VARIABLE status)
  execute_process(COMMAND ${TUTTI_NVCC} --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
  set(found "")
  if(status EQUAL 0)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]+" here "${here}")
    foreach(number IN LISTS here)
      string(REPLACE "." "" number ${number})
      if(number GREATER_EQUAL 80 AND known MATCHES "sm_${number}[^0-9]")
        list(APPEND found ${number})
      endif()
    endforeach()
    list(REMOVE_DUPLICATES found)
    list(SORT found COMPARE NATURAL)
  endif()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

if(TUTTI_CUDA)
  find_program(TUTTI_NVCC nvcc HINTS /usr/local/cuda/bin)
  set(tutti_architectures ${TUTTI_CUDA_ARCHITECTURES})
  if(TUTTI_NVCC AND TUTTI_CUDA_ARCHITECTURES STREQUAL "native")
    tutti_native_architectures(tutti_architectures)
  endif()
  if(TUTTI_NVCC AND tutti_architectures)
    set(TUTTI_HAVE_CUDA ON)
    message(STATUS "Tutti: with kernels for GPUs (${tutti_architectures}), by ${TUTTI_NVCC}")
  elseif(NOT TUTTI_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "TUTTI_CUDA is ON, but there is no nvcc, or no GPU for TUTTI_CUDA_ARCHITECTURES=native; "
                        "install CUDA's compiler, name the architectures, or leave TUTTI_CUDA at AUTO")
  endif()
endif()
if(NOT TUTTI_HAVE_CUDA)
  message(STATUS "Tutti: host-only build, without kernels for GPUs (no nvcc, no GPU to build for, or TUTTI_CUDA is OFF)")
endif()

# Adds the images, or an empty list of them, to the library of a module.
function(tutti_add_device_code target)
  set(images "")
  set(declarations "")
  set(entries "")
  if(TUTTI_HAVE_CUDA)
    set(folder ${PROJECT_SOURCE_DIR}/src/backend/cuda)
    file(GLOB kernels CONFIGURE_DEPENDS ${folder}/device/*.cu)
    set(architectures "")
    foreach(number IN LISTS tutti_architectures)
      list(APPEND architectures -gencode arch=compute_${number},code=sm_${number})
      set(newest ${number})
    endforeach()
    list(APPEND architectures -gencode arch=compute_${newest},code=compute_${newest})
    # A quarter of the size; older compilers have no choice.
    set(compression "")
    execute_process(COMMAND ${TUTTI_NVCC} --help OUTPUT_VARIABLE help ERROR_QUIET)
    if(help MATCHES "--compress-mode")
      set(compression --compress-mode=size)
    endif()
    foreach(kernel IN LISTS kernels)
      get_filename_component(name ${kernel} NAME_WE)
      set(image ${PROJECT_BINARY_DIR}/device/${name}.fatbin)
      add_custom_command(OUTPUT ${image}
        COMMAND ${TUTTI_NVCC} -std=c++20 --expt-relaxed-constexpr -O3 ${compression} ${architectures}
                -ccbin ${CMAKE_CXX_COMPILER} -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include
                -MD -MF ${image}.d -MT ${image} -fatbin ${kernel} -o ${image}
        DEPENDS ${kernel} DEPFILE ${image}.d COMMENT "Compiling kernels ${name} for GPUs" VERBATIM)
      list(APPEND images ${image})
      string(APPEND declarations
        "asm(\".section .rodata\\n.balign 64\\n.hidden tutti_image_${name}\\n.globl tutti_image_${name}\\n\"\n"
        "    \"tutti_image_${name}:\\n.incbin \\\"${image}\\\"\\n.previous\");\n"
        "extern \"C\" __attribute__((visibility(\"hidden\"))) const unsigned char tutti_image_${name}[];\n")
      string(APPEND entries "    {\"${name}\", tutti_image_${name}},\n")
    endforeach()
    file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/device)
    add_custom_target(tutti_device_code DEPENDS ${images})
  endif()
  set(source ${PROJECT_BINARY_DIR}/device_images.cc)
  tutti_write_device_images(${source} "${declarations}" "${entries}")
  set_source_files_properties(${source} PROPERTIES OBJECT_DEPENDS "${images}")
  target_sources(${target} PRIVATE ${source})
  target_link_libraries(${target} PUBLIC ${CMAKE_DL_LIBS})
endfunction()

# The list of the images, as a source file.
function(tutti_write_device_images source declarations entries)
  set(body "  return {};\n")
  if(entries)
    set(body "  static const DeviceImage images[] = {\n${entries}  };\n  return images;\n")
  endif()
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT "// Made by cmake/TuttiCuda.cmake.
#include \"backend/cuda/device_code.h\"

${declarations}
namespace tutti::cuda {
std::span<const DeviceImage> DeviceImages() {
${body}}
}  // namespace tutti::cuda
")
endfunction()
