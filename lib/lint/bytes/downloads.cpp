#include "lib/lint/bytes/downloads.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lib/base/io/file.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWeights = ".safetensors";

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return name.ends_with(end); });
}

/// Returns the number after "size " in a pointer; empty: there is none.
std::string pointer_size(std::string_view pointer) {
  const size_t line = pointer.find("\nsize ");
  if (line == pointer.npos) return {};
  const std::string_view rest = pointer.substr(line + 6);
  return std::string(rest.substr(0, std::min<size_t>(rest.find_first_not_of("0123456789"), 20)));
}

std::optional<Placeholder> find_pointer(std::string_view head) {
  const auto pointer = [&](const char* kind, const char* todo) -> std::optional<Placeholder> {
    const std::string size = pointer_size(head);
    return Placeholder{kind,
                       fmt::format("{}{}: {}", kind, size.empty() ? "" : " to " + size + " bytes", todo)};
  };
  if (head.starts_with("version https://git-lfs") || head.starts_with("version https://hawser."))
    return pointer("a Git LFS pointer", "run git lfs pull");
  if (head.starts_with("# xet version"))
    return pointer("a Xet pointer", "run git xet checkout, or download it");
  if (head.starts_with("/annex/objects/") || head.starts_with("../.git/annex/"))
    return pointer("a git-annex pointer", "run git annex get");
  return std::nullopt;
}

/// Returns `text` in lower case, without leading blanks.
std::string lower_start(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

/// True if a text is a short JSON object that is only an error message.
bool is_error_message(std::string_view text) {
  Json json;
  try {
    json = parse_json("message", std::string(text));
  } catch (const Error&) {
    return false;
  }
  if (!json.is_object() || json.empty()) return false;
  bool wrong = false;
  for (const auto& [key, value] : json.items()) {
    static const std::set<std::string_view> kWrong = {"error", "errors", "detail", "message", "error_code"};
    static const std::set<std::string_view> kBeside = {
        "status",     "statuscode", "statusCode", "code", "path",     "timestamp",        "requestId",
        "request_id", "success",    "title",      "type", "instance", "documentation_url"};
    wrong = wrong || kWrong.contains(key);
    if (!kWrong.contains(key) && !kBeside.contains(key)) return false;
  }
  return wrong;
}

constexpr const char* kMessage = "a server's message instead of the file";

std::optional<Placeholder> find_page(std::string_view head, bool whole) {
  const std::string start = lower_start(head);
  const auto begins = [&](std::string_view text) { return start.starts_with(text); };
  const auto sent = [](const char* kind) {
    return Placeholder{kind,
                       fmt::format("{}, a server's message instead of the file: download it again", kind)};
  };
  if (begins("<!doctype html") || begins("<html") || begins("<head")) return sent("an HTML page");
  if (begins("<?xml") || begins("<error")) return sent("an XML document");
  if (!whole) return std::nullopt;
  const bool is_message = (begins("{") && is_error_message(head)) || begins("entry not found") ||
                          begins("repository not found") || begins("not found") || begins("404") ||
                          begins("403") || begins("401") || begins("access denied") || begins("forbidden") ||
                          begins("unauthorized") || begins("invalid username or password") ||
                          begins("access to model") || begins("internal server error") ||
                          begins("bad gateway") || begins("service unavailable") ||
                          begins("too many requests");
  if (!is_message) return std::nullopt;
  std::string shown(head.substr(0, head.find_first_of("\r\n")));
  return Placeholder{kMessage, fmt::format("{} {}: download it again", kMessage, json_quote_short(shown))};
}

std::string read_head(const fs::path& path, uint64_t& size) {
  constexpr uint64_t kHead = 2048;
  const InputFile file(path);
  size = file.size();
  std::string head(std::min(size, kHead), '\0');
  file.read(0, {reinterpret_cast<uint8_t*>(head.data()), head.size()});
  return head;
}

/// An unfinished download.
struct Begun {
  std::string part;     ///< path below the directory
  std::string becomes;  ///< name of the finished file; empty: unknown
};

/// Returns a file's name without a downloader's suffix; empty: the name has no such suffix.
std::string finished_name(std::string_view name) {
  for (const std::string_view end : {".incomplete", ".aria2", ".part", ".partial", ".crdownload", ".download",
                                     ".filepart", ".tmp", ".temp", ".!qB", ".!ut"}) {
    if (name.size() <= end.size() || !name.ends_with(end)) continue;
    name.remove_suffix(end.size());
    // Hugging Face inserts the hash of the file before the suffix.
    const size_t dot = name.rfind('.');
    const bool hashed = end == ".incomplete" && dot != name.npos && name.size() - dot > 32 &&
                        name.find_first_not_of("0123456789abcdef-", dot + 1) == name.npos;
    return std::string(hashed ? name.substr(0, dot) : name);
  }
  // rsync: ".model.safetensors.Xy12ab"
  const size_t dot = name.rfind('.');
  const bool rsync = name.starts_with('.') && dot != name.npos && name.size() - dot == 7 &&
                     name.substr(0, dot).ends_with(kWeights);
  return rsync ? std::string(name.substr(1, dot - 1)) : "";
}

/// True for a name that a checkpoint's file may have.
bool is_checkpoint_file(std::string_view name) {
  return ends_with_any(name, {kWeights, ".json", ".model", ".txt", ".jinja", ".py", ".tiktoken"});
}

/// True if engines need a file with that name.
bool is_needed(std::string_view name) {
  static const std::set<std::string_view> kNeeded = {"config.json",
                                                     "hf_quant_config.json",
                                                     "tokenizer.json",
                                                     "tokenizer.model",
                                                     "tokenizer_config.json",
                                                     "generation_config.json",
                                                     "chat_template.jinja",
                                                     "preprocessor_config.json",
                                                     "processor_config.json",
                                                     "vocab.json",
                                                     "vocab.txt",
                                                     "merges.txt",
                                                     "tekken.json",
                                                     "spiece.model",
                                                     "special_tokens_map.json"};
  return kNeeded.contains(name) || ends_with_any(name, {".py", ".tiktoken", ".safetensors.index.json"});
}

std::vector<Begun> find_begun(const fs::path& directory) {
  std::vector<Begun> begun;
  std::error_code error;
  const auto look = [&](const fs::path& folder, const std::string& shown) {
    // Paths in a download cache are as deep as in the repository.
    for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (it.depth() > 4 || shown.empty()) it.disable_recursion_pending();
      std::error_code ignored;
      if (!it->is_regular_file(ignored)) continue;
      const std::string becomes = finished_name(name);
      // A name that Chrome gives.
      const bool cached = !shown.empty(), unnamed = name.starts_with("Unconfirmed ");
      if (becomes.empty() || (!cached && !unnamed && !is_checkpoint_file(becomes))) continue;
      begun.push_back({cached ? shown + "/" + it->path().lexically_relative(folder).string() : name,
                       is_checkpoint_file(becomes) ? becomes : ""});
    }
    error.clear();
  };
  look(directory, "");
  look(directory / ".cache/huggingface/download", ".cache/huggingface/download");
  look(directory / "._____temp", "._____temp");
  const fs::path absolute = fs::absolute(directory, error).lexically_normal();
  const fs::path last = absolute.has_filename() ? absolute : absolute.parent_path();
  if (last.parent_path().filename() == "snapshots")
    look(last.parent_path().parent_path() / "blobs", "../../blobs");
  std::sort(begun.begin(), begun.end(), [](const Begun& a, const Begun& b) { return a.part < b.part; });
  return begun;
}

/// Returns the offset from which a file has only zeros up to its end.
uint64_t begin_of_zeros(const Shard& shard) {
  constexpr uint64_t kPiece = 1 << 16;
  std::vector<uint8_t> piece(kPiece);
  uint64_t end = shard.file.size();
  while (end > shard.data_begin) {
    const uint64_t begin = std::max(shard.data_begin, end - std::min(end, kPiece));
    const std::span<uint8_t> bytes(piece.data(), end - begin);
    shard.file.read(begin, bytes);
    for (size_t i = bytes.size(); i-- > 0;)
      if (bytes[i] != 0) return begin + i + 1;
    end = begin;
  }
  return end;
}

/// Returns the names of the weight files whose tensors are all complete.
std::set<std::string> whole_shards(const LintInput& s) {
  std::set<std::string> whole;
  for (const Shard& shard : s.shards) whole.insert(shard.name);
  for (size_t i = 0; i < s.tensors.size(); ++i)
    if (!s.whole[i]) whole.erase(s.file_of(i));
  return whole;
}

}  // namespace

std::optional<Placeholder> find_placeholder(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  uint64_t size = 0;
  std::string head;
  try {
    head = read_head(path, size);
  } catch (const ReadError&) {
    throw;
  } catch (const Error&) {
    return std::nullopt;  // the code that reads the file reports this
  }
  const bool is_weights = path.filename().string().ends_with(kWeights);
  if (size == 0) {
    const std::string extension = path.extension().string();
    const bool may_be_empty = !is_weights && extension != ".json" && extension != ".model";
    if (may_be_empty) return std::nullopt;  // an empty __init__.py of a Python package, for example
    return Placeholder{"an empty file", "an empty file: download it again"};
  }
  if (is_weights && size > 8 && std::all_of(head.begin(), head.end(), [](char c) { return c == '\0'; })) {
    return Placeholder{"zeros", "zeros at its beginning, which a download reserves: download it again"};
  }
  if (auto pointer = find_pointer(head)) return pointer;
  if (is_weights && head.size() > 8 && head[8] == '{' && head[7] == '\0') return std::nullopt;
  return find_page(head, size == head.size());
}

bool report_placeholder(const fs::path& directory, const std::string& name, std::string_view expected,
                        LintReporter& reporter) {
  const auto found = find_placeholder(directory / name);
  if (!found) return false;
  reporter.add("not-downloaded", {name, ""}, fmt::format("expected {}, found {}", expected, found->text),
               LintFacts{.key = found->kind});
  return true;
}

void lint_downloads(const LintInput& s, const std::set<std::string>& named, LintReporter& reporter) {
  const std::set<std::string> whole = whole_shards(s);
  const bool lacks_named =
      std::any_of(named.begin(), named.end(), [&](const std::string& n) { return is_absent(s.path / n); });
  for (const Begun& b : find_begun(s.path)) {
    const bool is_weights = b.becomes.ends_with(kWeights), is_control = b.part.ends_with(".aria2");
    const bool is_there = !b.becomes.empty() && !is_absent(s.path / b.becomes);
    const bool is_meant = is_weights ? named.empty() || named.contains(b.becomes) : is_needed(b.becomes);
    // aria2 reserves the space of the whole file at once, and removes its control file at the end.
    const bool spoils = b.becomes.empty() ? lacks_named || s.shards.empty()
                        : is_there        ? is_control || (is_weights && !whole.contains(b.becomes))
                                          : is_meant;
    if (spoils) {
      reporter.add("unfinished-download", {b.becomes.empty() ? b.part : b.becomes, ""},
                   "expected a whole file, found {}, a download that did not finish", b.part);
      if (is_weights && !is_there && named.empty()) reporter.lose(b.becomes, std::nullopt);
    } else {
      reporter.add(
          "download-leftover", {b.part, ""},
          b.becomes.empty() ? "expected no partial download, found one beside whole files"
          : is_there
              ? fmt::format("expected no partial download beside {}, found one", b.becomes)
              : fmt::format("expected no partial download, found one of {}, which no file names", b.becomes));
    }
  }
}

void lint_zero_tails(const LintInput& s, LintReporter& reporter) {
  std::map<size_t, std::vector<const TensorInfo*>> by_shard;
  for (size_t t = 0; t < s.tensors.size(); ++t)
    if (s.whole[t]) by_shard[s.shard_of[t]].push_back(&s.tensors[t]);
  for (const auto& [shard, tensors] : by_shard) {
    const Shard& file = s.shards[shard];
    const uint64_t zeros = begin_of_zeros(file);
    size_t count = 0, matrices = 0, experts = 0;
    bool is_at_border = false;
    for (const TensorInfo* t : tensors) {
      is_at_border = is_at_border || file.data_begin + t->begin == zeros;
      if (t->bytes() == 0 || file.data_begin + t->begin < zeros) continue;
      ++count;
      matrices += t->shape.size() > 1;
      experts += t->name.find("experts.") != t->name.npos;
    }
    // Experts that pad end a file, too. Other rules look at experts of zeros.
    if (is_at_border && experts == count) continue;
    // One tensor of zeros may be intended. It is a fault if a matrix and the tensors beside it are zeros up
    // to the last byte.
    if (count < 2 || matrices == 0) continue;
    reporter.add("unfinished-download", {file.name, ""},
                 "expected weights up to byte {}, found only zeros from byte {} on, in {} of {} tensors, as "
                 "in space that a download reserved",
                 file.file.size(), zeros, count, tensors.size());
  }
}

bool has_unfinished_weights(const fs::path& directory) {
  const std::vector<Begun> begun = find_begun(directory);
  return std::any_of(begun.begin(), begun.end(),
                     [](const Begun& b) { return b.becomes.empty() || b.becomes.ends_with(kWeights); });
}

}  // namespace twofour
