# The content of packages: .deb has the program that uses Debian's libraries, .tar.gz the program that uses none.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_COMPONENTS_ALL shared)
else()
  set(CPACK_COMPONENTS_ALL static)
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
endif()
