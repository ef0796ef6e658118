#include "lib/lint/bytes/figures.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "lib/base/io/hash.h"
#include "lib/source/linears/tensor_values.h"

namespace twofour {
namespace {

constexpr uint64_t kSampledNumbers = 1u << 14, kSampledLines = 8;
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

uint64_t mix_hash(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// Adds numbers to those of `to` from `at` on, which may end earlier.
template <class T>
void add_into(std::vector<T>& to, const std::vector<T>& from, size_t at) {
  if (from.empty()) return;
  to.resize(std::max(to.size(), at + from.size()));
  for (size_t i = 0; i < from.size(); ++i) to[at + i] += from[i];
}

}  // namespace

uint64_t MatrixPlan::sampled() const {
  const uint64_t per_byte = kind == NumberKind::kE2m1 ? 2 : 1;
  const uint64_t numbers =
      std::max<uint64_t>(1, line_bytes * per_byte / static_cast<uint64_t>(width_of(kind)));
  return std::min(lines, std::max(kSampledLines, kSampledNumbers / numbers));
}

uint64_t MatrixPlan::next_sampled(uint64_t i) const {
  const uint64_t ranges = sampled();
  if (ranges == lines) return i;
  for (uint64_t range = i * ranges / lines; range < ranges; ++range) {
    const uint64_t begin = (range * lines + ranges - 1) / ranges,
                   end = ((range + 1) * lines + ranges - 1) / ranges;
    const uint64_t line = begin + mix_hash(range + kGolden) % (end - begin);
    if (line >= i) return line;
  }
  return lines;
}

FigureCounter::FigureCounter(const MatrixPlan& plan, uint64_t first_line, uint64_t lines)
    : plan_(plan), first_(first_line), next_(first_line), sample_(plan.next_sampled(first_line)) {
  sums_.plan = plan;
  if (plan.kind == NumberKind::kUnknown || plan.is_scale) return;
  constexpr uint64_t kScalePiece = 256;
  pieces_.emplace(lines * plan.line_bytes, Pieces::kPiece);
  if (plan.scale_bytes > 0) scale_pieces_.emplace(lines * plan.scale_bytes, kScalePiece);
}

bool FigureCounter::is_new(uint64_t hash) {
  constexpr uint64_t kRoom = 4, kFirst = 1u << 14;  // kFirst lines of most matrices fit without growth
  const auto place = [&](uint32_t tag) {
    size_t at = tag & (seen_.size() - 1);
    while (seen_[at] != 0 && seen_[at] != tag) at = (at + 1) & (seen_.size() - 1);
    return at;
  };
  if (kRoom * (seen_count_ + 1) > seen_.size()) {
    std::vector<uint32_t> old(
        std::bit_ceil(std::max(kRoom * std::min(plan_.lines, kFirst), 4 * seen_.size())));
    old.swap(seen_);
    for (const uint32_t tag : old) {
      if (tag != 0) seen_[place(tag)] = tag;
    }
  }
  const auto tag = std::max<uint32_t>(1, static_cast<uint32_t>(hash >> 32));
  const size_t at = place(tag);
  if (seen_[at] == tag) return false;
  seen_[at] = tag;
  ++seen_count_;
  return true;
}

/// Counts a line that is not zero and has a run of zeros: at least kTorn zero bytes, or fewer that begin or
/// end the line and are next to a zero line. Pruned lines have such runs by chance, so the run must be
/// unlikely among the line's other numbers. A run that is in a line beside it, too, is that of a block.
void FigureCounter::take_torn(std::span<const uint8_t> bytes, uint64_t begin, uint64_t size) {
  constexpr uint64_t kStep = MatrixFigures::kTorn,
                     kEnd = 32;  // no weights have that many zero bytes by chance
  const auto are_zero = [&](uint64_t at, uint64_t count) {
    return std::ranges::all_of(bytes.subspan(at, count), [](uint8_t b) { return b == 0; });
  };
  const auto has_run = [&] {
    for (uint64_t at = 0; at + kStep <= size; at += kStep) {
      if (word_of(&bytes[begin + at]) == 0 && word_of(&bytes[begin + at + kStep / 2]) == 0 &&
          are_zero(begin + at, kStep))
        return true;
    }
    if (size < 2 * kEnd) return false;
    if (zero_run_ > 0 && are_zero(begin, kEnd)) return true;
    const uint64_t end = begin + size;
    return end + size <= bytes.size() && word_of(&bytes[end - 8]) == 0 && are_zero(end - kEnd, kEnd) &&
           is_zero_line(plan_.kind, bytes.subspan(end, size));
  };
  if (!has_run()) return;
  const ZeroRun run = longest_zeros(plan_.kind, bytes.subspan(begin, size));
  if (!is_unlikely_run(plan_.kind, bytes.subspan(begin, size), run)) return;
  const auto is_beside = [&](uint64_t at) {
    if (at + size > bytes.size() || is_zero_line(plan_.kind, bytes.subspan(at, size))) return false;
    constexpr uint64_t kNear = 16;  // a weight at the border of a block may be zero
    const ZeroRun other = longest_zeros(plan_.kind, bytes.subspan(at, size));
    const auto is_near = [](uint64_t a, uint64_t b) { return std::max(a, b) - std::min(a, b) <= kNear; };
    return is_near(run.begin, other.begin) && is_near(run.end, other.end);
  };
  // A line without neighbours among the bytes is taken for that of a block.
  const bool has_next = begin + 2 * size <= bytes.size(), has_last = begin >= size;
  const bool is_alone = !has_next && !has_last;
  if (!is_alone && !is_beside(begin + size) && !(has_last && is_beside(begin - size))) {
    ++sums_.torn_lines;
    return;
  }
  ++sums_.block_lines;
  const auto line = static_cast<uint32_t>(next_);
  sums_.first_block_line = std::min(sums_.first_block_line, line);
  sums_.end_block_line = std::max(sums_.end_block_line, line + 1);
}

/// Hashes the lines of the next chunk, and fetches the places of the table in which they will be looked up.
void FigureCounter::hash_lines(std::span<const uint8_t> bytes) {
  hashes_.clear();
  for (uint64_t begin = 0; begin < std::min(Chunk::kBytes, bytes.size()); begin += plan_.line_bytes) {
    const uint64_t hash =
        hash_bytes_64(bytes.subspan(begin, std::min(plan_.line_bytes, bytes.size() - begin)));
    if (!seen_.empty()) __builtin_prefetch(&seen_[hash >> 32 & (seen_.size() - 1)]);
    hashes_.push_back(hash);
  }
}

void FigureCounter::add(std::span<const uint8_t> bytes, std::span<const uint8_t> scales) {
  const uint64_t count = plan_.line_bytes > 0 ? (bytes.size() + plan_.line_bytes - 1) / plan_.line_bytes : 0;
  if (next_ == 0 && lines_ == 0 && plan_.scale_bytes > 0) measure_order(scales);
  take_piece(bytes, scales);
  uint64_t run_begin = 0, hashed = 0;  // the first hashed line
  hashes_.clear();
  for (uint64_t i = 0; i < count; ++i, ++next_, ++lines_) {
    const uint64_t begin = i * plan_.line_bytes;
    const auto line = bytes.subspan(begin, std::min(plan_.line_bytes, bytes.size() - begin));
    if (i == hashed + hashes_.size()) {
      hash_lines(bytes.subspan(begin));
      hashed = i;
    }
    const uint64_t codes = hashes_[i - hashed];
    const uint64_t place = (next_ + 1) * kGolden;
    uint64_t hash = codes;
    if (plan_.scale_bytes > 0) {
      const auto of_line = scales.subspan(i * plan_.scale_bytes, plan_.scale_bytes);
      const uint64_t own = hash_bytes_64(of_line);
      sums_.same_scale_lines += own == last_scales_;
      last_scales_ = own;
      hash = mix_hash(hash + kGolden * own);
      sums_.codes += mix_hash(codes ^ place);
      sums_.scales += mix_hash(own ^ place);
    } else {
      sums_.ordered += mix_hash(hash ^ place);
    }
    sums_.unordered += plan_.scale_bytes > 0 ? hash : mix_hash(hash);
    if (plan_.is_scale) {
      // Rows of scales may be alike.
    } else if (is_zero_line(plan_.kind, line)) {
      ++sums_.zero_lines;
      sums_.zero_rows.add(next_, plan_.lines);
      const auto of_line = scales.subspan(i * plan_.scale_bytes, plan_.scale_bytes);
      sums_.live_zero_lines +=
          std::ranges::any_of(of_line, [](uint8_t x) { return x >= kTinyScale; }) ? 1 : 0;
      if (++zero_run_ > sums_.longest_zero_lines) {
        sums_.longest_zero_lines = zero_run_;
        sums_.first_zero_line = next_ + 1 - zero_run_;
      }
    } else {
      take_torn(bytes, begin, line.size());
      zero_run_ = 0;
      if (plan_.is_rows && !is_new(codes)) {
        ++sums_.repeated_lines;
        sums_.doubled_lines += codes == last_codes_;
      }
    }
    last_codes_ = codes;
    take_line(line, scales.data() + i * plan_.scale_bytes, float_lines_.empty() ? nullptr : &float_lines_[i]);
    if (chunk_.lines++ == 0) chunk_.first_line = next_;
    if (chunk_.lines * plan_.line_bytes < Chunk::kBytes && i + 1 < count) continue;
    // All lines of a chunk are counted at once.
    const uint64_t end = begin + line.size();
    take_run(bytes.subspan(run_begin, end - run_begin), scales.data() + run_begin / 8);
    run_begin = end;
    if (chunk_.lines * plan_.line_bytes >= Chunk::kBytes) end_chunk();
  }
  if (pieces_) {
    pieces_->add((next_ - count) * plan_.line_bytes, bytes);
    looks_.add((next_ - count) * plan_.line_bytes, bytes);
  }
  if (scale_pieces_) {
    scale_pieces_->add((next_ - count) * plan_.scale_bytes, scales);
    scale_looks_.add((next_ - count) * plan_.scale_bytes, scales);
  }
}

void FigureCounter::end_chunk() {
  if (chunk_.lines == 0 || plan_.kind == NumberKind::kUnknown) return;
  if (plan_.kind == NumberKind::kInt8) bytes_.move_to(plan_.kind, chunk_, numbers_);
  for (size_t c = 0; is_codes() && c < chunk_.classes.size(); ++c) numbers_[c] += chunk_.classes[c];
  counted_ += chunk_.numbers;
  zeros_ += chunk_.zeros;
  negative_ += chunk_.negative;
  chunks_.push_back(std::exchange(chunk_, {}));
}

void FigureCounter::finish() {
  end_chunk();
  if (plan_.kind == NumberKind::kE4m3) {
    Chunk sampled;
    bytes_.move_to(plan_.kind, sampled, numbers_);
  }
  if (plan_.kind == NumberKind::kE8m0) {
    for (size_t b = 0; b < numbers_.size(); ++b) {
      counted_ += numbers_[b];
      if (b >= 0x80) negative_ += numbers_[b];
    }
    zeros_ += numbers_[0];
  }
  const bool has_scale_bytes = plan_.scale_bytes > 0 && !plan_.k_outer;
  if (has_scale_bytes || plan_.kind == NumberKind::kE8m0) add_column_parts();
  end_logs();
}

bool FigureCounter::is_codes() const {
  return plan_.kind == NumberKind::kE2m1 || plan_.kind == NumberKind::kInt4;
}

void FigureCounter::take_line(std::span<const uint8_t> bytes, const uint8_t* scales,
                              const FloatCounts* floats) {
  if (plan_.kind == NumberKind::kUnknown) return;
  const bool is_sampled = next_ == sample_;
  if (is_sampled) sample_ = plan_.next_sampled(next_ + 1);
  if (plan_.is_rows) {
    take_columns(bytes.data());
    if (!plan_.is_scale) sums_.echo_lines += is_echo(bytes);
    const bool codes = plan_.kind == NumberKind::kE2m1 && !plan_.k_outer;
    if (codes && next_ < kPairLines) take_pairs(bytes.data());
    if (codes || (plan_.kind == NumberKind::kE4m3 && !plan_.is_scale)) take_signs(bytes.data());
  }
  if (width_of(plan_.kind) > 1) take_floats(bytes, floats, is_sampled);
  if (plan_.kind == NumberKind::kE4m3 && is_sampled) bytes_.add(bytes);
  if (plan_.scale_bytes == 0) return;
  // In most lines, the first two scales differ.
  sums_.flat_scale_lines +=
      plan_.scale_bytes == 1 ||
      (scales[0] == scales[1] && std::memcmp(scales, scales + 1, plan_.scale_bytes - 1) == 0);
  if (is_sampled) take_energies(bytes.data(), scales);
}

/// True if a line has its numbers twice: both halves are equal, or the numbers are pairs of equal neighbours.
bool FigureCounter::is_echo(std::span<const uint8_t> bytes) const {
  constexpr size_t kFewNumbers = 16;
  const auto width = static_cast<size_t>(width_of(plan_.kind));
  if (bytes.size() < kFewNumbers * width || bytes.size() % (2 * width) != 0) return false;
  const auto half = bytes.subspan(bytes.size() / 2);  // at least eight bytes
  // The first eight bytes are enough for most lines.
  const uint64_t first = word_of(bytes.data());
  const uint64_t odd = first ^ first >> (8 * width);
  const uint64_t unequal = odd & (width == 1   ? 0x00FF00FF00FF00FFu
                                  : width == 2 ? 0x0000FFFF0000FFFFu
                                               : 0xFFFFFFFFu);
  if ((first != word_of(half.data()) && unequal != 0) || is_zero_line(plan_.kind, bytes)) return false;
  if (first == word_of(half.data()) && std::memcmp(bytes.data(), half.data(), half.size()) == 0) return true;
  for (size_t i = 0; i < bytes.size(); i += 2 * width) {
    if (std::memcmp(&bytes[i], &bytes[i + width], width) != 0) return false;
  }
  return true;
}

void FigureCounter::note_amax(double amax) { amax_ = std::max(amax_, amax); }

uint64_t FigureCounter::hash_in_order() const {
  return plan_.scale_bytes > 0 ? mix_hash(sums_.codes + kGolden * sums_.scales) : sums_.ordered;
}

void FigureCounter::merge(const FigureCounter& o) {
  lines_ += o.lines_;
  using F = MatrixFigures;
  for (const auto sum :
       {&F::ordered, &F::unordered, &F::codes, &F::scales, &F::zero_lines, &F::torn_lines, &F::repeated_lines,
        &F::doubled_lines, &F::same_scale_lines, &F::flat_scale_lines, &F::echo_lines})
    sums_.*sum += o.sums_.*sum;
  sums_.live_zero_lines += o.sums_.live_zero_lines;
  sums_.block_lines += o.sums_.block_lines;
  sums_.zero_rows.merge(o.sums_.zero_rows);
  if (o.sums_.unsigned_columns > sums_.unsigned_columns) {
    sums_.unsigned_columns = o.sums_.unsigned_columns;
    sums_.first_unsigned = o.sums_.first_unsigned;
    sums_.unsigned_line = o.sums_.unsigned_line;
  }
  if (lower_codes_.empty()) lower_codes_ = o.lower_codes_, upper_codes_ = o.upper_codes_;
  sums_.first_block_line = std::min(sums_.first_block_line, o.sums_.first_block_line);
  sums_.end_block_line = std::max(sums_.end_block_line, o.sums_.end_block_line);
  const bool longer = o.sums_.longest_zero_lines > sums_.longest_zero_lines ||
                      (o.sums_.longest_zero_lines == sums_.longest_zero_lines &&
                       o.sums_.first_zero_line < sums_.first_zero_line);
  if (longer) {
    sums_.longest_zero_lines = o.sums_.longest_zero_lines;
    sums_.first_zero_line = o.sums_.first_zero_line;
  }
  if (o.next_ == o.lines_) {  // the other part began with the first line
    sums_.transposed = o.sums_.transposed;
    sums_.swizzled = o.sums_.swizzled;
  }
  columns_.resize(std::max(columns_.size(), o.columns_.size()));
  for (size_t i = 0; i < o.columns_.size(); ++i)
    columns_[i] = static_cast<uint8_t>(columns_[i] | o.columns_[i]);
  for (size_t i = 0; i < 256; ++i) {
    numbers_[i] += o.numbers_[i];
    scale_bytes_[i] += o.scale_bytes_[i];
    scale_energies_[i] += o.scale_energies_[i];
  }
  blocks_ += o.blocks_;
  full_blocks_ += o.full_blocks_;
  zero_blocks_ += o.zero_blocks_;
  negative_ += o.negative_;
  energy_ += o.energy_;
  octaves_ += o.octaves_;
  amax_ = std::max(amax_, o.amax_);
  energy_numbers_ += o.energy_numbers_;
  counted_ += o.counted_;
  full_ += o.full_;
  next_full_ += o.next_full_;
  zeros_ += o.zeros_;
  is_grid_ = is_grid_ && o.is_grid_;
  if (o.lone_ > lone_) lone_ = o.lone_, lone_line_ = o.lone_line_;
  dead_blocks_ += o.dead_blocks_;
  if (o.sums_.dead_run > sums_.dead_run) {
    sums_.dead_run = o.sums_.dead_run;
    sums_.dead_first = o.sums_.dead_first;
    best_run_scales_ = o.best_run_scales_;
  }
  for (const auto sum : {&F::scale_pairs, &F::equal_pairs, &F::equal_between}) sums_.*sum += o.sums_.*sum;
  if (pieces_) pieces_->merge(*o.pieces_);
  if (scale_pieces_) scale_pieces_->merge(*o.scale_pieces_);
  looks_.merge(o.looks_);
  scale_looks_.merge(o.scale_looks_);
  chunks_.insert(chunks_.end(), o.chunks_.begin(), o.chunks_.end());
  add_into(column_sums_, o.column_sums_, 0);
  add_into(column_counts_, o.column_counts_, 0);
  // A line is in one part only, so its level is that part's.
  if (!plan_.is_scale && !row_sums_.empty()) row_sums_.insert(row_sums_.begin(), first_, 0), first_ = 0;
  add_into(row_sums_, o.row_sums_, plan_.is_scale ? 0 : o.first_);
  add_into(row_counts_, o.row_counts_, 0);
}

}  // namespace twofour
