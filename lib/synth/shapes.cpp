#include "lib/synth/shapes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "formats/error.h"
#include "formats/naming.h"
#include "kernels/device/check.h"
#include "lib/names/pattern.h"
#include "lib/synth/synth.h"

namespace twofour {
namespace {

using enum SynthRole;
using enum SynthScope;

const SynthShape& find_shape(const std::string& name) {
  const auto shapes = synth_shape_table();
  const auto same = [&](const SynthShape& s) { return s.name == name; };
  const auto shape = std::find_if(shapes.begin(), shapes.end(), same);
  if (shape != shapes.end()) return *shape;
  throw Error(
      fmt::format("synth: expected a shape of {}, found '{}'", fmt::join(synth_shapes(), ", "), name));
}

/// A shape may have several rows, of other modules each.
std::pair<const SynthShape*, const SynthPublication*> find_publication(const SynthChoice& choice) {
  const SynthShape& first = find_shape(choice.shape);
  for (const SynthShape& shape : synth_shape_table()) {
    if (std::string_view(shape.name) != first.name) continue;
    for (const SynthPublication& p : shape.publications) {
      if (choice.dialect.empty() || choice.dialect == p.dialect) return {&shape, &p};
    }
  }
  throw Error(fmt::format("synth: expected a dialect of {}, found '{}'",
                          fmt::join(synth_dialects(choice.shape), ", "), choice.dialect));
}

/// Replaces members of `base`, those of its objects one by one.
void patch(Json& base, const Json& changes) {
  for (const auto& [key, value] : changes.items()) {
    if (value.is_object()) {
      patch(base[key], value);
    } else {
      base[key] = value;
    }
  }
}

void patch(Json& base, const SynthJson& changes) {
  for (const char* text : changes.texts) {
    if (text != nullptr) patch(base, parse_json("config.json", text));
  }
}

Json make_config(const SynthShape& shape, const SynthPublication& publication, const SynthChoice& choice) {
  Json config = Json::object();
  patch(config, shape.config);
  if (choice.small) patch(config, shape.small);
  if (publication.config != nullptr) patch(config, SynthJson(publication.config));
  return config;
}

int64_t count(const Json& config, std::string_view key, int64_t fallback) {
  return config.contains(key) ? config.at(key).get<int64_t>() : fallback;
}

void check_range(const char* what, int64_t found, int64_t least, int64_t most) {
  if (found >= least && found <= most) return;
  throw Error(fmt::format("synth: {}: expected {} to {}, found {}", what, least, most, found));
}

bool any_layer(SynthWhere where, int64_t layers) {
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (where == nullptr || where(layer, layers)) return true;
  }
  return false;
}

/// Emits modules in the order of the rows.
class Walk {
 public:
  Walk(const SynthModel& model, const std::function<void(std::span<const SynthModule>)>& f)
      : model_(model), f_(f) {
    for (const SynthFormatRule& rule : model.publication->rules) patterns_.emplace_back(rule.modules);
    if (model.publication->kv_scales != nullptr) kv_scales_.emplace_back(model.publication->kv_scales);
  }

  void run() {
    for (const SynthStack& stack : model_.shape->stacks) {
      emit(stack, kModel, -1, "");
      const int64_t first = model_.size(stack.first), end = first + model_.size(stack.count);
      for (int64_t layer = first; layer < end; ++layer) {
        const std::string prefix = fmt::format(fmt::runtime(stack.layer_prefix), layer);
        emit(stack, kLayer, layer, prefix);
        if (stack.expert_prefix == nullptr) continue;
        for (int64_t expert = 0; expert < model_.experts; ++expert) {
          emit(stack, kExpert, layer, prefix + fmt::format(fmt::runtime(stack.expert_prefix), expert));
        }
      }
      if (!together_.empty()) f_(together_);
      together_.clear();
    }
  }

 private:
  void emit(const SynthStack& stack, SynthScope scope, int64_t layer, const std::string& prefix) {
    const int64_t as = stack.as_layer >= 0 ? stack.as_layer : layer;
    for (const std::span<const SynthRule> rules : stack.rules) {
      for (const SynthRule& rule : rules) {
        if (rule.scope != scope || (rule.where != nullptr && !rule.where(as, model_.layers))) continue;
        SynthModule module = make(rule, prefix, as);
        if (stack.together) {
          together_.push_back(std::move(module));
        } else if (rule.role == kGate) {
          pair_.assign(1, std::move(module));
        } else {
          if (rule.role != kUp) pair_.clear();
          pair_.push_back(std::move(module));
          f_(pair_);
        }
      }
    }
  }

  SynthModule make(const SynthRule& rule, const std::string& prefix, int64_t layer) const {
    const bool stack = rule.role == kStack || rule.role == kStackBias;
    SynthModule m{{prefix + rule.name, stack ? model_.experts : 0, model_.size(rule.n), model_.size(rule.k)},
                  rule.role};
    if (!m.is_linear() && rule.role != kEmbedding && rule.role != kStack) return m;
    const SynthPublication& p = *model_.publication;
    if (rule.role <= kUp) m.format = p.format;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      if (!patterns_[i].matches(m.name())) continue;
      if (p.rules[i].where != nullptr && !p.rules[i].where(layer, model_.layers)) continue;
      m.format = p.rules[i].format;
      break;
    }
    m.has_kv_scale = any_matches(kv_scales_, m.name());
    return m;
  }

  const SynthModel& model_;
  const std::function<void(std::span<const SynthModule>)>& f_;
  std::vector<NamePattern> patterns_, kv_scales_;
  std::vector<SynthModule> pair_, together_;
};

}  // namespace

std::span<const SynthShape> synth_shape_table() {
  static const std::vector<SynthShape> all = [] {
    std::vector<SynthShape> rows;
    for (const auto shapes : {single_format_shapes(), qwen_flash_next_shapes(), qwen_shapes(),
                              deepseek_v4_shapes(), latent_attention_shapes(), nemotron_shapes(),
                              minimax_shapes(), kimi_k3_shapes(), ling_shapes(), gpt_oss_shapes()})
      rows.insert(rows.end(), shapes.begin(), shapes.end());
    return rows;
  }();
  return all;
}

SynthModel make_synth_model(const SynthChoice& choice) {
  const auto [shape, publication] = find_publication(choice);
  if (shape->experts_key == nullptr && choice.experts) {
    throw Error(fmt::format("synth: experts: expected none, as {} is a dense model, found {}", shape->name,
                            *choice.experts));
  }
  SynthModel model{shape, publication, make_config(*shape, *publication, choice), 0, 0, choice.vocab};
  Json& text = shape->text != nullptr ? model.config[shape->text] : model.config;
  model.layers = choice.layers.value_or(count(text, "num_hidden_layers", shape->layers));
  check_range("layers", model.layers, shape->least_layers, 1000);
  check_range("vocab", model.vocab, 1, 10'000'000);
  text["num_hidden_layers"] = model.layers;
  if (shape->experts_key != nullptr) {
    model.experts = choice.experts.value_or(count(text, shape->experts_key, shape->experts));
    const int64_t top_k = count(text, shape->top_k_key, shape->top_k);
    if (model.experts < top_k || model.experts > kSynthMostExperts) {
      throw Error(
          fmt::format("synth: experts: expected {} to {}, as the router of {} picks {} a token, found {}",
                      top_k, kSynthMostExperts, shape->name, top_k, model.experts));
    }
    text[shape->experts_key] = model.experts;
    text[shape->top_k_key] = top_k;
  }
  text["vocab_size"] = model.vocab;
  if (shape->finish != nullptr) shape->finish(text, model.layers);
  return model;
}

int64_t SynthModel::size(std::string_view expression) const {
  const auto value = [&](std::string_view factor) -> int64_t {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(factor.data(), factor.data() + factor.size(), number);
    if (error == std::errc() && end == factor.data() + factor.size()) return number;
    if (text().contains(factor)) return text().at(factor).get<int64_t>();
    if (config.contains(factor)) return config.at(factor).get<int64_t>();
    const size_t dot = factor.find('.');
    check(dot != factor.npos, "a key of the shape's config");
    const std::string_view outer = factor.substr(0, dot);
    const Json& nested = text().contains(outer) ? text().at(outer) : config.at(outer);
    return nested.at(factor.substr(dot + 1)).get<int64_t>();
  };
  const auto split = [](std::string_view& rest, char at) {
    const size_t end = std::min(rest.find(at), rest.size());
    const std::string_view first = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return first;
  };
  int64_t sum = 0;
  while (!expression.empty()) {
    std::string_view term = split(expression, '+');
    int64_t product = 1;
    while (!term.empty()) {
      std::string_view factor = split(term, '*');
      product *= value(split(factor, '/'));
      while (!factor.empty()) product /= value(split(factor, '/'));
    }
    sum += product;
  }
  return sum;
}

void for_each_module(const SynthModel& model, const std::function<void(std::span<const SynthModule>)>& f) {
  Walk(model, f).run();
}

namespace {

/// The modules that a rule names, one by one.
void add_names(const SynthModel& model, const SynthRule& rule, std::vector<std::string>& names) {
  const std::string end = fmt::format(".{}", rule.name);
  for_each_module(model, [&](std::span<const SynthModule> modules) {
    for (const SynthModule& m : modules) {
      if (m.name().ends_with(end)) names.push_back(m.name());
    }
  });
}

}  // namespace

std::vector<std::string> unquantized_modules(const SynthModel& model) {
  std::vector<std::string> globs;
  for (const SynthStack& stack : model.shape->stacks) {
    for (const std::span<const SynthRule> rules : stack.rules) {
      for (const SynthRule& rule : rules) {
        if ((rule.role != kLinear && rule.role != kConvolution) || !any_layer(rule.where, model.layers))
          continue;
        // vLLM compares globs with the name of what it fuses, "qkv_proj", and names with those of its parts.
        if (rule.scope != kModel && fused_group(std::string(".") + rule.name)) {
          add_names(model, rule, globs);
          continue;
        }
        globs.push_back(rule.scope == kModel ? std::string(rule.name) : fmt::format("*.{}", rule.name));
      }
    }
  }
  return globs;
}

int64_t synth_least_experts(const std::string& shape) { return find_shape(shape).top_k; }

std::vector<std::string> synth_shapes() {
  std::vector<std::string> names;
  for (const SynthShape& shape : synth_shape_table()) {
    if (std::find(names.begin(), names.end(), shape.name) == names.end()) names.emplace_back(shape.name);
  }
  return names;
}

namespace {

/// Of shapes that `wanted` takes, once each.
template <class F>
std::vector<std::string> dialects_of(F wanted) {
  std::vector<std::string> names;
  for (const SynthShape& shape : synth_shape_table()) {
    for (const SynthPublication& p : shape.publications) {
      if (wanted(shape) && std::find(names.begin(), names.end(), p.dialect) == names.end())
        names.emplace_back(p.dialect);
    }
  }
  return names;
}

}  // namespace

std::vector<std::string> synth_dialects() {
  return dialects_of([](const SynthShape&) { return true; });
}

std::vector<std::string> synth_dialects(const std::string& shape) {
  return dialects_of([&](const SynthShape& s) { return s.name == shape; });
}

}  // namespace twofour
