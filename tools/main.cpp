#include "tools/commands.h"

int main(int argc, char** argv) { return twofour::run_program(argc, argv, twofour::twofour_program()); }
