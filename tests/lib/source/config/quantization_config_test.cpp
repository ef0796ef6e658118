#include "lib/source/config/quantization_config.h"
#include "lib/base/names/config_pattern.h"

#include <doctest/doctest.h>

#include "lib/base/names/pattern.h"

namespace quantization_config_test {

using namespace twofour;

TEST_CASE("patterns of names are translated where the other dialect has words for them, else spelled out") {
  const std::vector<std::string> globs{"lm_head", "*.mlp.gate", "model.layers.0*", "a?c"};
  const std::vector<std::string> regexes = globs_to_regexes(globs);
  CHECK(regexes ==
        std::vector<std::string>{"lm_head", "re:.*\\.mlp\\.gate$", "re:model\\.layers\\.0.*$", "re:a.c$"});
  CHECK(regexes_to_globs(regexes, {}) == globs);
  const std::vector<std::string> classes{"x.[!1-9].y*", "[]a]b",      "[!]^]b", "a[b.*", "x.[8-10].y",
                                         "x.[z-a].y",   "x.[!z-a].y", "[a-]b",  "[^c]b"};
  CHECK(globs_to_regexes(classes) == std::vector<std::string>{"re:x\\.[^1-9]\\.y.*$", "re:[\\]a]b$",
                                                              "re:[^\\]\\^]b$", "re:a\\[b\\..*$",
                                                              "re:x\\.[0]\\.y$", "re:x\\.(?!)\\.y$",
                                                              "re:x\\..\\.y$", "re:[a\\-]b$", "re:[\\^c]b$"});
  for (const std::string& glob : classes) {
    const NamePattern of_glob(glob), of_regex(globs_to_regexes({glob})[0]);
    for (const char* name :
         {"x.0.y", "x.1.y", "x.!.yz", "ab", "]b", "^b", "cb", "-b", "a[b.c", "ab.c", "x.8.y"})
      CHECK(of_glob.matches(name) == of_regex.matches(name));
  }
  CHECK(regexes_to_globs({"re:.*lm_head", "re:^visual\\..*"}, {}) ==
        std::vector<std::string>{"*lm_head*", "visual.*"});
  CHECK(regexes_to_globs({"re:.*layers\\.[0-9]+\\.gate$"}, {"m.layers.10.gate", "m.layers.x.gate"}) ==
        std::vector<std::string>{"m.layers.10.gate"});
  // What is a sign in one dialect and itself in the other has no words there.
  CHECK(regexes_to_globs({"re:a\\*", "re:b\\[0\\]$"}, {"a*c", "ac", "b[0]"}) ==
        std::vector<std::string>{"a*c", "b[0]"});
  CHECK(globs_to_regexes({"re:.*mlp.gate$"}) == std::vector<std::string>{"re:.*mlp.gate$"});
}

}  // namespace quantization_config_test
