#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/error.h"
#include "lib/base/threads/stopwatch.h"
#include "lib/report/report.h"
#include "lib/run/eval/evaluate.h"
#include "lib/source/tokenizer/tokenizer.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"
#include "tools/cli/source_options.h"
#include "tools/cli/token_options.h"

namespace twofour {
namespace {

struct EvalArguments {
  std::string model, against, html, zero_points;
  TokenOptions input;
  std::optional<int64_t> context, stride, limit;
  bool dry_run = false;
};

double perplexity(const MeanFigure& loss) { return std::exp(loss.mean); }
/// The error of the perplexity, to first order. This suffices, since errors of losses are small.
double perplexity_error(const MeanFigure& loss) { return std::exp(loss.mean) * loss.error; }

/// The windows that the options ask for.
std::vector<EvalWindow> windows_of(const EvalArguments& o, const Decoder& model, const Decoder* other) {
  const int64_t positions = other == nullptr ? model.shape().positions
                                             : std::min(model.shape().positions, other->shape().positions);
  const int64_t context = context_or_default(o.context, positions);
  const int64_t stride = o.stride.value_or(std::max<int64_t>(1, context / 2));
  if (stride > context) {
    throw Error(
        fmt::format("--stride: expected at most the {} tokens of --context, found {}", context, stride));
  }
  std::vector<EvalWindow> windows;
  for (const std::vector<int32_t>& text : read_texts(o.input, o.model, model.shape().vocabulary)) {
    const int64_t left = o.limit.value_or(INT64_MAX) - static_cast<int64_t>(windows.size());
    for (EvalWindow& w : cut_windows(text, context, stride, left)) windows.push_back(std::move(w));
  }
  if (windows.empty())
    throw Error(fmt::format("{}: expected a text of two tokens and more, found none", o.input.file()));
  return windows;
}

/// Gives the texts of tokens, if the model has a known tokenizer.
class TokenTexts {
 public:
  /// Opens the tokenizer if its texts are `wanted`.
  TokenTexts(const std::string& model, bool wanted) {
    if (!wanted) return;
    try {
      tokenizer_.emplace(Tokenizer::load(model));
    } catch (const Error&) {
      // Ignored, because figures do not need the tokenizer.
    }
  }
  bool exist() const { return tokenizer_.has_value(); }
  /// The text of tokens [begin, end) of a window. They are decoded together, since single tokens could lose
  /// characters and spaces.
  std::string of(const EvalWindow& window, int64_t begin, int64_t end) const {
    begin = std::max<int64_t>(begin, 0);
    const auto tokens = std::span(window.tokens).subspan(static_cast<size_t>(begin));
    return tokenizer_->decode(tokens.first(static_cast<size_t>(end - begin)), false);
  }
  std::string of(int32_t token) const { return tokenizer_->decode({&token, 1}, false); }

 private:
  std::optional<Tokenizer> tokenizer_;
};

/// The number of tokens before a place that are shown with the place.
constexpr int64_t kShownTokens = 12;

Json place_to_json(const EvalPlace& p, bool against, const EvalWindow& window, const TokenTexts& texts) {
  Json json = {
      {"window", p.window}, {"position", p.position}, {"token", p.token}, {"loss", p.loss}, {"top", p.top}};
  if (against) {
    json["other_loss"] = p.other_loss;
    json["other_top"] = p.other_top;
    json["divergence"] = p.divergence;
  }
  if (texts.exist()) {
    json["before"] = texts.of(window, p.position - kShownTokens, p.position);
    json["text"] = texts.of(p.token);
    json["top_text"] = texts.of(p.top);
  }
  return json;
}

Json position_to_json(const PositionFigures& p, bool against) {
  Json json = {{"begin", p.begin}, {"end", p.end}, {"predictions", p.predictions}, {"loss", p.loss}};
  if (against) {
    json["divergence"] = p.divergence;
    json["agreement"] = p.agreement;
  }
  return json;
}

Json figures_to_json(const EvalArguments& o, const Decoder& model, const EvalFigures& f,
                     std::span<const EvalWindow> windows, const TokenTexts& texts, double seconds) {
  Json json = {{"path", o.model},
               {"family", model.shape().family},
               {"device", device_name(model.device())},
               {"windows", f.windows},
               {"predictions", f.predictions},
               {"loss", f.loss.mean},
               {"loss_error", f.loss.error},
               {"perplexity", perplexity(f.loss)},
               {"perplexity_error", perplexity_error(f.loss)},
               {"seconds", seconds}};
  if (f.against) {
    Json layers = Json::array();
    for (const LayerAgreement& l : f.against->layers)
      layers.push_back({{"cosine", l.cosine}, {"relative_error", l.relative_error}});
    json["against"] = {{"path", o.against},
                       {"perplexity", perplexity(f.against->loss)},
                       {"perplexity_error", perplexity_error(f.against->loss)},
                       {"ratio", perplexity(f.against->difference)},
                       {"ratio_error", perplexity_error(f.against->difference)},
                       {"divergence", f.against->divergence.mean},
                       {"divergence_error", f.against->divergence.error},
                       {"divergence_p99", f.against->divergence_p99},
                       {"agreement", f.against->agreement},
                       {"layers", std::move(layers)}};
  }
  const bool against = f.against.has_value();
  json["positions"] = Json::array();
  for (const PositionFigures& p : f.positions) json["positions"].push_back(position_to_json(p, against));
  json["worst"] = Json::array();
  for (const EvalPlace& p : f.worst)
    json["worst"].push_back(place_to_json(p, against, windows[static_cast<size_t>(p.window)], texts));
  return json;
}

void print_layers(const AgainstFigures& against) {
  if (against.layers.empty()) return;
  print_stdout("residual stream behind each layer: cosine, relative error\n");
  for (size_t i = 0; i < against.layers.size(); ++i)
    print_stdout("  {:>3}  {:.6f}  {:.4f}\n", i, against.layers[i].cosine, against.layers[i].relative_error);
}

void print_places(const EvalFigures& f, std::span<const EvalWindow> windows, const TokenTexts& texts) {
  print_stdout("positions: loss{}\n", f.against ? ", divergence, agreement" : "");
  for (const PositionFigures& p : f.positions) {
    print_stdout("  {:>6} to {:>6}  {:.4f}{}\n", p.begin, p.end - 1, p.loss,
                 f.against ? fmt::format("  {:.5f}  {:.2f} %", p.divergence, 100 * p.agreement) : "");
  }
  print_stdout("worst predictions: window, position, loss{}; token, most probable{}\n",
               f.against ? ", divergence" : "", f.against ? ", and of the other" : "");
  const auto shown = [&](int32_t token) {
    return texts.exist() ? fmt::format("'{}'", texts.of(token)) : fmt::format("{}", token);
  };
  for (const EvalPlace& p : f.worst) {
    print_stdout("  {:>4} {:>6}  {:.3f}{}  {}, {}{}\n", p.window, p.position, p.loss,
                 f.against ? fmt::format("  {:.3f}", p.divergence) : "", shown(p.token), shown(p.top),
                 f.against ? ", " + shown(p.other_top) : "");
    if (texts.exist())
      print_stdout("       behind '{}'\n",
                   texts.of(windows[static_cast<size_t>(p.window)], p.position - kShownTokens, p.position));
  }
}

void print_figures(const EvalArguments& o, const Common& common, const EvalFigures& f,
                   std::span<const EvalWindow> windows, const TokenTexts& texts, Device device,
                   double seconds) {
  print_stdout("{}: perplexity {:.4f} +- {:.4f}, {} of {}\n", o.model, perplexity(f.loss),
               perplexity_error(f.loss), counted(static_cast<uint64_t>(f.predictions), "prediction"),
               counted(static_cast<uint64_t>(f.windows), "window"));
  if (f.against) {
    const AgainstFigures& a = *f.against;
    print_stdout("{}: perplexity {:.4f} +- {:.4f}\n", o.against, perplexity(a.loss),
                 perplexity_error(a.loss));
    print_stdout(
        "ratio {:.4f} +- {:.4f}; divergence {:.5f} +- {:.5f} nats, 99th percentile {:.4f}; same most "
        "probable token {:.2f} %\n",
        perplexity(a.difference), perplexity_error(a.difference), a.divergence.mean, a.divergence.error,
        a.divergence_p99, 100 * a.agreement);
    if (common.verbose) print_layers(a);
    if (!a.layers.empty() && !common.verbose) {
      const LayerAgreement& last = a.layers.back();
      print_stdout("residual stream behind the last layer: cosine {:.6f}, relative error {:.4f}\n",
                   last.cosine, last.relative_error);
    }
  }
  if (common.verbose) print_places(f, windows, texts);
  if (common.quiet) return;
  print_stdout("{}, {:.1f} s\n", device_text(common, device), seconds);
}

/// The texts of the worst predictions, with the tokens before each and the token itself.
std::vector<std::string> worst_texts(const EvalFigures& f, std::span<const EvalWindow> windows,
                                     const TokenTexts& texts) {
  std::vector<std::string> found;
  if (!texts.exist()) return found;
  for (const EvalPlace& p : f.worst) {
    const EvalWindow& w = windows[static_cast<size_t>(p.window)];
    found.push_back(fmt::format("'{}' behind '{}'", texts.of(p.token),
                                texts.of(w, p.position - kShownTokens, p.position)));
  }
  return found;
}

int run_eval(const EvalArguments& o, const Common& common) {
  if (!o.html.empty()) check_report_file(o.html);
  const Device device = choose_device(common);
  const ZeroPoints zero_points = parse_zero_points(o.zero_points);
  Decoder model = Decoder::open(o.model, zero_points);
  std::optional<Decoder> other;
  if (!o.against.empty()) other = Decoder::open(o.against, zero_points);
  const Decoder* against = other ? &*other : nullptr;
  const std::vector<EvalWindow> windows = windows_of(o, model, against);
  const EvalPlan plan = plan_evaluation(model, against, windows);
  if (o.dry_run) {
    int64_t predictions = 0;
    for (const EvalWindow& w : windows) predictions += w.predictions();
    if (common.json) {
      print_json({{"dry_run", true},
                  {"path", o.model},
                  {"family", model.shape().family},
                  {"device", device_name(device)},
                  {"windows", windows.size()},
                  {"predictions", predictions},
                  {"windows_at_once", plan.windows_at_once},
                  {"bytes_read", plan.weights_read},
                  {"peak_memory", plan.peak_memory}});
    } else {
      print_stdout("{}: {}, {} of {}, {} at once\n", o.model, model.shape().family,
                   counted(static_cast<uint64_t>(predictions), "prediction"),
                   counted(windows.size(), "window"), plan.windows_at_once);
      print_stdout("would read {} of weights, with at most {} of memory beside their mapped files\n",
                   format_bytes(plan.weights_read), format_bytes(plan.peak_memory));
    }
    return kDone;
  }
  if (device == Device::cuda) {
    model.use_cuda();
    if (other) other->use_cuda();
  }
  // The tokenizer is opened before the weights are read, so that everything belongs to one state of the
  // model.
  const TokenTexts texts(o.model, common.json || common.verbose || !o.html.empty());
  const Stopwatch watch;
  EvalFigures figures;
  with_progress(common, [&](Progress& progress) { figures = evaluate(model, against, windows, progress); });
  if (!o.html.empty())
    write_report(o.html, eval_report(figures, o.model, o.against, worst_texts(figures, windows, texts)));
  if (common.json) {
    print_json(figures_to_json(o, model, figures, windows, texts, watch.seconds()));
  } else {
    print_figures(o, common, figures, windows, texts, device, watch.seconds());
  }
  return kDone;
}

}  // namespace

std::function<int()> setup_eval(Arguments& args, const Common& common) {
  auto o = std::make_shared<EvalArguments>();
  args.option("PATH", o->model, "Checkpoint or artifact: a whole model").required().as_checkpoint();
  add_token_options(args, o->input);
  args.exactly_one_of({"--text", "--tokens"});
  add_zero_points_option(args, o->zero_points, "of both models");
  args.option("--against", o->against,
              "Another checkpoint or artifact with the same vocabulary, which counts as the truth")
      .value_name("PATH")
      .as_checkpoint();
  add_context_option(args, o->context, "Tokens that the model sees at a time");
  args.option("--stride", o->stride, "Tokens from one window of a text to the next")
      .range(1, 1 << 24)
      .default_text("half of --context");
  args.option("--limit", o->limit, "At most so many windows").range(1, 1 << 30).default_text("all");
  args.flag("--dry-run", o->dry_run, "Say what would be read, and how much memory that takes");
  add_html_option(args, o->html);
  return [o, &common] { return run_eval(*o, common); };
}

}  // namespace twofour
