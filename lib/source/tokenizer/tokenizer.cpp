#include "lib/source/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/source/tokenizer/added_tokens.h"
#include "lib/source/tokenizer/bpe.h"
#include "lib/source/tokenizer/field.h"
#include "lib/source/tokenizer/text_steps.h"
#include "lib/source/tokenizer/tokenizer_file.h"
#include "lib/source/tokenizer/unicode.h"

namespace twofour {
namespace {

constexpr uint64_t kMostFileBytes = 256u << 20;
/// The largest number of ids on each side of a text.
constexpr size_t kMostAround = 1024;

size_t bytes_of(const std::vector<std::string>& texts) {
  size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  return bytes;
}

/// The ids before and after the ids of a text.
struct Frame {
  std::vector<int32_t> before, behind;
};

/// Appends the ids of `special`, a SpecialToken of a template, from its list of special tokens.
void append_special(const Field& special, const Field& list, int32_t vocabulary_size,
                    std::vector<int32_t>& ids) {
  const Field name = special.at("id");
  const Field token = list.at(name.text());
  if (token.is_null()) name.refuse("a token of special_tokens");
  for (const Field& id : token.at("ids").elements()) {
    if (ids.size() == kMostAround) special.refuse(fmt::format("at most {} ids beside a text", kMostAround));
    ids.push_back(static_cast<int32_t>(id.whole(static_cast<size_t>(vocabulary_size) - 1)));
  }
}

void read_template(const Field& field, int32_t vocabulary_size, Frame& frame) {
  const Field single = field.at("single");
  std::vector<int32_t> before, behind;
  bool has_text = false;
  for (const Field& piece : single.elements()) {
    const Field sequence = piece.at("Sequence");
    if (sequence.is_null()) {
      append_special(piece.at("SpecialToken"), field.at("special_tokens"), vocabulary_size,
                     has_text ? behind : before);
      continue;
    }
    sequence.at("id").choice({"A"});
    if (std::exchange(has_text, true)) piece.refuse("one Sequence");
  }
  if (!has_text) single.refuse("a Sequence");
  if (std::max(frame.before.size() + before.size(), frame.behind.size() + behind.size()) > kMostAround)
    field.refuse(fmt::format("at most {} ids beside a text", kMostAround));
  frame.before.insert(frame.before.begin(), before.begin(), before.end());
  frame.behind.insert(frame.behind.end(), behind.begin(), behind.end());
}

/// Returns the parts of a Sequence and of nested Sequences, or only `field` if it is not a Sequence.
std::vector<Field> parts_of(const Field& field, std::string_view list) {
  if (field.is_null()) return {};
  if (field.at("type").text() != "Sequence") return {field};
  std::vector<Field> all;
  for (const Field& element : field.at(list).elements()) {
    const std::vector<Field> parts = parts_of(element, list);
    all.insert(all.end(), parts.begin(), parts.end());
  }
  return all;
}

/// Throws Error if the effect of Metaspace with prepend_scheme "first" is unknown. It depends on the piece
/// that begins the text. Without the place of each character in the source, this piece is only known if
/// Metaspace is the first pre-tokenizer, and if the normalizers are normal forms, Lowercase and ByteLevel.
void check_first_prepended(const Field& document) {
  const std::vector<Field> splits = parts_of(document.at("pre_tokenizer"), "pretokenizers");
  bool asks = false;
  for (size_t i = 0; i < splits.size(); ++i) {
    const Field scheme = splits[i].at("prepend_scheme");
    if (splits[i].at("type").text() != "Metaspace" || scheme.is_null() || scheme.text() != "first") continue;
    if (i != 0) scheme.refuse("always or never behind another pre-tokenizer");
    asks = true;
  }
  if (!asks) return;
  for (const Field& normalizer : parts_of(document.at("normalizer"), "normalizers")) {
    const std::string& type = normalizer.at("type").text();
    if (type == "Replace" || type == "Strip" || type == "StripAccents" || type == "Prepend")
      normalizer.refuse(
          "no normalizer that may change the beginning of a text before Metaspace with prepend_scheme first");
  }
}

/// Reads the ids around a text. ByteLevel changes only offsets, which are not used here.
void read_post_processor(const Field& field, int32_t vocabulary_size, Frame& frame) {
  if (field.is_null()) return;
  switch (field.at("type").choice({"TemplateProcessing", "ByteLevel", "Sequence"})) {
    case 0:
      return read_template(field, vocabulary_size, frame);
    case 1:
      return;
    default:
      for (const Field& processor : field.at("processors").elements())
        read_post_processor(processor, vocabulary_size, frame);
  }
}

}  // namespace

struct Tokenizer::Parts {
  std::string where;
  std::vector<AddedToken> added;
  std::unordered_map<int32_t, size_t> added_by_id;
  std::vector<std::string> added_texts;  ///< texts of the added tokens, as a decoder sees them
  /// The contents of special tokens. As in `tokenizers`, a token that a normalizer changes does not count as
  /// special when ids are decoded.
  std::unordered_set<std::string> special_texts;
  Bpe bpe;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<DecoderStep> decoder;
  bool has_decoder = false;
  Frame frame;
  TokenFinder in_text, in_normalized;
  int32_t vocabulary_size = 0;

  explicit Parts(TokenizerFile file) : added(std::move(file.added_tokens)), bpe(std::move(file.model)) {}

  const std::string* text_of(int32_t id) const;
  std::string normalized(std::string_view text) const {
    std::string result(text);
    for (const NormalizerStep& step : normalizer) {
      step(result);
      check_growth(where, text.size(), result.size());
    }
    return result;
  }
  void add_tokens();
  void encode_piece(std::string_view text, bool begins_text, Bpe::Encoder& encoder,
                    std::vector<int32_t>& ids) const;
};

const std::string* Tokenizer::Parts::text_of(int32_t id) const {
  if (const auto found = added_by_id.find(id); found != added_by_id.end()) return &added_texts[found->second];
  if (id < 0 || static_cast<size_t>(id) >= bpe.tokens().size()) return nullptr;
  const std::string& token = bpe.tokens()[static_cast<size_t>(id)];
  return bpe.find(token) == id ? &token : nullptr;
}

void Tokenizer::Parts::add_tokens() {
  vocabulary_size = static_cast<int32_t>(bpe.tokens().size());
  added_texts.reserve(added.size());
  for (const AddedToken& token : added) {
    vocabulary_size = std::max(vocabulary_size, token.id + 1);
    added_by_id.emplace(token.id, added_texts.size());
    const std::string& text =
        added_texts.emplace_back(token.normalized ? normalized(token.content) : token.content);
    if (token.special) special_texts.insert(token.content);
    const auto refuse = [&](std::string_view expected, std::string_view found) {
      throw Error(
          fmt::format("{}: added_tokens[{}]: expected tokens that {} when they are normalized, found {}",
                      where, added_texts.size() - 1, expected, found));
    };
    // With an empty token, `tokenizers` finds a match between any two characters and divides the text there.
    if (text.empty()) refuse("are not empty", json_quote_short(token.content));
    if (!(token.normalized ? in_normalized : in_text).add(token, text))
      refuse("differ", fmt::format("a second {}", json_quote_short(text)));
  }
}

/// Encodes a normalized text that has no added tokens.
void Tokenizer::Parts::encode_piece(std::string_view text, bool begins_text, Bpe::Encoder& encoder,
                                    std::vector<int32_t>& ids) const {
  TextPieces pieces{std::string(text), {{0, text.size()}}, begins_text};
  for (const PreTokenizerStep& step : pre_tokenizer) {
    step(pieces);
    check_growth(where, text.size(), pieces.text.size());
  }
  for (size_t i = 0; i < pieces.spans.size(); ++i) encoder.encode(pieces[i], ids);
}

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  const bool is_directory = std::filesystem::is_directory(status_of(path));
  const std::filesystem::path file = is_directory ? path / "tokenizer.json" : path;
  return parse(file.string(), read_text(file, kMostFileBytes));
}

Tokenizer Tokenizer::parse(std::string_view where, std::string_view text) {
  TokenizerFile file = read_tokenizer_file(where, text);
  const Json json = std::move(file.parts);
  const Field document(fmt::format("{}:", where), json);
  auto parts = std::make_unique<Parts>(std::move(file));
  parts->where = where;
  parts->normalizer = read_normalizer(document.at("normalizer"));
  parts->pre_tokenizer = read_pre_tokenizer(document.at("pre_tokenizer"));
  parts->decoder = read_decoder(document.at("decoder"));
  parts->has_decoder = !document.at("decoder").is_null();
  check_first_prepended(document);
  parts->add_tokens();
  read_post_processor(document.at("post_processor"), parts->vocabulary_size, parts->frame);
  return Tokenizer(std::move(parts));
}

int32_t Tokenizer::vocabulary_size() const { return parts_->vocabulary_size; }

int32_t Tokenizer::find(std::string_view token) const {
  for (const AddedToken& added : parts_->added)
    if (added.content == token) return added.id;
  return parts_->bpe.find(token);
}

std::string_view Tokenizer::token(int32_t id) const {
  if (const auto found = parts_->added_by_id.find(id); found != parts_->added_by_id.end())
    return parts_->added[found->second].content;
  const std::string* text = parts_->text_of(id);
  return text == nullptr ? std::string_view() : *text;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special,
                                       std::string_view where) const {
  if (const size_t at = find_not_utf8(text); at != std::string_view::npos) {
    throw Error(fmt::format("{}: expected UTF-8, found 0x{:02X} at byte {}", where,
                            static_cast<uint8_t>(text[at]), at));
  }
  const Parts& p = *parts_;
  std::vector<int32_t> ids;
  if (add_special) ids = p.frame.before;
  Bpe::Encoder encoder(p.bpe);
  for (const TextPart& part : p.in_text.find(text)) {
    if (part.token != nullptr) {
      ids.push_back(part.token->id);
      continue;
    }
    const std::string normalized =
        p.normalized(text.substr(part.span.begin, part.span.end - part.span.begin));
    for (const TextPart& inner : p.in_normalized.find(normalized)) {
      if (inner.token != nullptr) {
        ids.push_back(inner.token->id);
        continue;
      }
      p.encode_piece(std::string_view(normalized).substr(inner.span.begin, inner.span.end - inner.span.begin),
                     part.span.begin == 0 && inner.span.begin == 0, encoder, ids);
    }
  }
  if (add_special) ids.insert(ids.end(), p.frame.behind.begin(), p.frame.behind.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  const Parts& p = *parts_;
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    const std::string* text = p.text_of(id);
    if (text == nullptr) continue;
    if (!skip_special || !p.special_texts.contains(*text)) tokens.push_back(*text);
  }
  const size_t before = bytes_of(tokens);
  for (const DecoderStep& step : p.decoder) {
    step(tokens);
    check_growth(p.where, before, bytes_of(tokens));
  }
  std::string out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i != 0 && !p.has_decoder) out += ' ';  // as in `tokenizers`
    out += tokens[i];
  }
  return out;
}

}  // namespace twofour
