#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/look/inspect/inspect.h"
#include "lib/look/inspect/numbers.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/run/runtime/c_guard.h"
#include "lib/run/runtime/twofour.h"

using namespace twofour;

/// `stored` has the tensors of the files, `view` has the modules. Modules of an artifact in a layout have the
/// names of its source.
struct twofour_checkpoint {
  twofour_checkpoint(const char* path, ZeroPoints zero_points)
      : stored(Checkpoint::open(path)),
        view(open_source(path, ReadPath::kFast, {}, Io::kCached, zero_points)) {
    stored.check_same_files();
  }
  Checkpoint stored, view;
  NamedNumbers numbers{view};
};

namespace {

/// A tensor that is found by name. It is in the files or, for an artifact in a layout, in its source.
struct Found {
  const Checkpoint& checkpoint;
  size_t tensor;
};

Found find_stored(const twofour_checkpoint& from, const std::string& name) {
  for (const Checkpoint* c : {&from.stored, &from.view}) {
    if (const auto tensor = c->find(name)) return {*c, *tensor};
  }
  throw Error(
      fmt::format("{}: expected a tensor, found none of that name in {}", name, from.stored.path().string()));
}

Json tensor_json(const Checkpoint& c, size_t i) {
  const TensorInfo& t = c.tensors()[i];
  return {{"name", t.name},
          {"dtype", dtype_name(t.dtype)},
          {"shape", t.shape},
          {"bytes", t.bytes()},
          {"file", c.shard_of(i).name}};
}

Json module_json(const Checkpoint& c, const NamedNumbers& numbers, const Linear& m) {
  Json shape = m.stacked ? Json{m.e, m.n, m.k} : Json{m.n, m.k}, tensors = Json::array();
  uint64_t bytes = 0;
  for (const size_t t : m.tensors()) {
    tensors.push_back(c.tensors()[t].name);
    bytes += c.tensors()[t].bytes();
  }
  return {{"name", m.name},
          {"format", numbers.matrices().format_of(m)},
          {"shape", std::move(shape)},
          {"bytes", bytes},
          {"tensors", std::move(tensors)}};
}

std::string list_of(const twofour_checkpoint& from) {
  Json tensors = Json::array(), modules = Json::array(), matrices = Json::array();
  for (size_t i = 0; i < from.stored.tensors().size(); ++i) tensors.push_back(tensor_json(from.stored, i));
  const Matrices& all = from.numbers.matrices();
  for (const Linear& m : all.modules()) modules.push_back(module_json(from.view, from.numbers, m));
  for (const auto& [name, matrix] : all.all()) {
    const Linear& m = all.module_of(matrix);
    if (m.name != name)
      matrices.push_back({{"name", name}, {"module", m.name}, {"shape", {matrix.count, m.k}}});
  }
  return Json{{"what", describe_kind(from.stored)},
              {"tensors", std::move(tensors)},
              {"modules", std::move(modules)},
              {"matrices", std::move(matrices)}}
      .dump();
}

/// The caller's ranges, one for each dimension.
std::vector<SliceRange> checked_ranges(const std::string& name, const std::vector<int64_t>& shape,
                                       int32_t dims, const int64_t* begin, const int64_t* end) {
  if (dims != static_cast<int32_t>(shape.size()))
    throw Error(fmt::format("{}: expected ranges of {} dimensions, found {}", name, shape.size(), dims));
  std::vector<SliceRange> ranges;
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t from = (&given(begin, "begin"))[d], to = (&given(end, "end"))[d];
    if (from < 0 || from > to || to > shape[d])
      throw Error(fmt::format("{}: dimension {}: expected a range in 0 to {}, found {} to {}", name, d,
                              shape[d], from, to));
    ranges.push_back({from, to});
  }
  return ranges;
}

}  // namespace

int twofour_open_checkpoint(const char* path, twofour_checkpoint** checkpoint) {
  return twofour_open_checkpoint_with(path, "", checkpoint);
}

int twofour_open_checkpoint_with(const char* path, const char* zero_points, twofour_checkpoint** checkpoint) {
  return guarded([&] {
    given(checkpoint, "checkpoint") = nullptr;
    const ZeroPoints word = parse_zero_points(&given(zero_points, "zero_points"));
    *checkpoint = new twofour_checkpoint(&given(path, "path"), word);
  });
}

void twofour_close_checkpoint(twofour_checkpoint* checkpoint) { delete checkpoint; }

int twofour_list(const twofour_checkpoint* checkpoint, char** json) {
  return guarded([&] {
    given(json, "json") = nullptr;
    *json = copied(list_of(given(checkpoint, "checkpoint")));
  });
}

int twofour_read_values(const twofour_checkpoint* checkpoint, const char* name, int32_t dims,
                        const int64_t* begin, const int64_t* end, float* values, uint64_t count) {
  return guarded([&] {
    const twofour_checkpoint& from = given(checkpoint, "checkpoint");
    const std::string text = &given(name, "name");
    const auto weights = from.numbers.find(text);
    const auto read = [&](const std::vector<int64_t>& shape, const auto& fill) {
      const auto ranges = checked_ranges(text, shape, dims, begin, end);
      uint64_t size = 1;
      for (const SliceRange& r : ranges) size *= static_cast<uint64_t>(r.end - r.begin);
      if (size != count)
        throw Error(fmt::format("{}: expected room for {} values, found {}", text, size, count));
      if (size > 0) fill(ranges, std::span(&given(values, "values"), count));
    };
    if (weights) {
      read(weights->shape,
           [&](const auto& ranges, std::span<float> to) { from.numbers.read(*weights, ranges, to); });
      return;
    }
    const Found found = find_stored(from, text);
    read(found.checkpoint.tensors()[found.tensor].shape, [&](const auto& ranges, std::span<float> to) {
      const std::vector<double> elements = read_elements(found.checkpoint, found.tensor, ranges);
      std::transform(elements.begin(), elements.end(), to.begin(),
                     [](double x) { return static_cast<float>(x); });
    });
  });
}

int twofour_read_bytes(const twofour_checkpoint* checkpoint, const char* tensor, uint64_t offset, void* to,
                       uint64_t bytes) {
  return guarded([&] {
    const Found found = find_stored(given(checkpoint, "checkpoint"), &given(tensor, "tensor"));
    const uint64_t whole = found.checkpoint.tensors()[found.tensor].bytes();
    if (offset > whole || bytes > whole - offset)
      throw Error(
          fmt::format("{}: expected bytes in 0 to {}, found {} from {} on", tensor, whole, bytes, offset));
    if (bytes > 0)
      found.checkpoint.read(found.tensor, offset,
                            {&given(static_cast<uint8_t*>(to), "to"), static_cast<size_t>(bytes)});
  });
}
