#include <doctest/doctest.h>

#include "tests/support/faults/lint_changed.h"

// Chat templates that are simple and sound, beside those that lack something.

namespace templates_test {

using namespace twofour;

namespace {

bool has_gap(const std::string& text) {
  return rules_of_change(Base::kLlama, [&](Save& s, std::mt19937&) { s.files["chat_template.jinja"] = text; })
      .contains("template-gap");
}

std::string loop(const std::string& body) { return "{% for m in messages %}" + body + "{% endfor %}"; }

}  // namespace

TEST_CASE("a simple template has no gap") {
  const std::string chat = loop("<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n");
  for (const std::string& text :
       {loop("{{ m.content }}"), loop("{{ m.role }}: {{ m.content }}\n"),
        loop("{{ m['role'] + ': ' + m['content'] + eos_token }}"),
        loop("### {{ m.role | capitalize }}:\n{{ m.content }}\n\n"),
        loop("{% if m.role == 'user' %}User: {{ m.content }}\n{% elif m.role == 'assistant' %}Assistant: "
             "{{ m.content }}\n{% elif m.role == 'system' %}{{ m.content }}\n{% endif %}"),
        loop("{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}{{ m.content }}{{ eos_token "
             "}}{% endif %}"),
        chat + "<|im_start|>assistant\n", chat + "{{ '<|im_start|>assistant\n' }}",
        chat + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        loop("<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% if loop.last and m.role == 'user' %}"
             "<|im_start|>assistant\n{% endif %}"),
        std::string("{{ messages[-1].content }}")}) {
    CAPTURE(text);
    CHECK_FALSE(has_gap(text));
  }
}

TEST_CASE("turns of tokens without a beginning of the answer are a gap") {
  const std::string chat = loop("<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n");
  CHECK(has_gap(chat));
  CHECK(has_gap(chat + "{{ '\n' }}"));
  CHECK(has_gap(chat + "{% if add_generation_prompt %}<|im_start|>user\n{% endif %}"));
  // What is written before the messages is not behind them.
  CHECK(has_gap("You are a helpful assistant.\n" + chat));
}

}  // namespace templates_test
