// Serves a directory as a repository of the Hub until standard input ends: serve ORG/NAME DIRECTORY [TOKEN].
#include <cstdio>

#include "tests/support/hub/hub_server.h"

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) return 2;
  twofour::HubServer server(argv[1], argv[2]);
  if (argc == 4) server.demand(argv[3]);
  std::printf("%s %s\n", server.endpoint().c_str(), server.kCommit);
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}
