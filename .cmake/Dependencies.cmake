# Libraries of the distribution's archive; `./dev setup` installs them.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(CLI11 REQUIRED)
if(BUILD_TESTING OR NOT DEFINED BUILD_TESTING)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

if(VSWITCH_DPDK)
  find_package(Protobuf REQUIRED)
  find_package(gRPC CONFIG REQUIRED)
  find_package(prometheus-cpp CONFIG REQUIRED)
  find_package(yaml-cpp REQUIRED)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(DPDK REQUIRED libdpdk>=22.11)

  # DPDK's core libraries, statically: a shared build of the EAL loads every driver plug-in of the
  # distribution at start-up, about a hundred libraries that this program has no use for.
  add_library(dpdk INTERFACE)
  foreach(directory IN LISTS DPDK_INCLUDE_DIRS)
    target_include_directories(dpdk SYSTEM INTERFACE ${directory})
  endforeach()
  target_compile_options(dpdk INTERFACE -include rte_config.h)
  set(dpdk_archives)
  foreach(library rte_rcu rte_ring rte_eal)
    find_library(${library}_ARCHIVE lib${library}.a REQUIRED HINTS ${DPDK_LIBDIR})
    list(APPEND dpdk_archives ${${library}_ARCHIVE})
  endforeach()
  find_library(rte_kvargs_ARCHIVE librte_kvargs.a REQUIRED HINTS ${DPDK_LIBDIR})
  find_library(rte_telemetry_ARCHIVE librte_telemetry.a REQUIRED HINTS ${DPDK_LIBDIR})
  # Constructors register the libraries' log types and tail queues, so all members are wanted.
  target_link_libraries(dpdk INTERFACE
    -Wl,--whole-archive ${dpdk_archives} -Wl,--no-whole-archive
    ${rte_kvargs_ARCHIVE} ${rte_telemetry_ARCHIVE} numa bsd Threads::Threads dl m)
endif()
