#include <algorithm>
#include <string>
#include <vector>

#include "formats/error.h"
#include "lib/base/findings/error_kinds.h"
#include "lib/run/runtime/c_guard.h"
#include "lib/run/runtime/twofour.h"
#include "tools/commands.h"

using namespace twofour;

int twofour_command(int32_t count, const char* const* words, twofour_progress progress, void* user,
                    int32_t* code, char** json) {
  return guarded_here([&] {
    given(json, "json") = nullptr;
    given(code, "code") = kTrouble;
    if (count < 1) throw Error(fmt::format("words: expected the name of a command, found {} words", count));
    std::vector<std::string> line;
    for (int32_t i = 0; i < count; ++i) {
      given(words, "words");
      line.emplace_back(&given(words[i], "words"));
    }
    if (line[0] == "run")
      throw Error("run: expected a command that runs no layer by itself, found run; call twofour_load");
    line.insert(line.begin() + 1, "--json");
    const CallResult result = call_program(twofour_program(), std::move(line), [&](const ShownProgress& now) {
      // Some phases read a byte twice, which callers need not know.
      return progress == nullptr || progress(user, now.phase, std::min(now.done, now.total), now.total) == 0;
    });
    *code = result.code;
    if (result.code == kDone || result.code == kFound) {
      *json = copied(result.text);
    } else {
      throw_error(result.kind, result.text);
    }
  });
}
