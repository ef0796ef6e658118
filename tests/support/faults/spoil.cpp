#include "tests/support/faults/spoil.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace twofour::spoil {
namespace {

float from_bf16(const uint8_t* bytes) {
  return std::bit_cast<float>(uint32_t{bytes[0]} << 16 | uint32_t{bytes[1]} << 24);
}
/// Rounded to nearest even; finite numbers.
void to_bf16(float value, uint8_t* bytes) {
  auto bits = std::bit_cast<uint32_t>(value);
  bits += 0x7FFF + ((bits >> 16) & 1);
  bytes[0] = static_cast<uint8_t>(bits >> 16);
  bytes[1] = static_cast<uint8_t>(bits >> 24);
}

/// E2M1 and E4M3 by their definitions.
double slow_e2m1(unsigned code) {
  constexpr double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8u) != 0 ? -magnitudes[code & 7u] : magnitudes[code & 7u];
}
double slow_e4m3(unsigned code) {
  const int exponent = static_cast<int>(code >> 3 & 15u), mantissa = static_cast<int>(code & 7u);
  const double v = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80u) != 0 ? -v : v;
}

std::string other_prefix(const std::string& name, const std::string& from, const std::string& to) {
  return to + name.substr(from.size());
}

/// Tensors that begin with `from`, each with the one of the same end under `to`.
std::vector<std::pair<TensorData*, TensorData*>> pairs(Save& s, const std::string& from,
                                                       const std::string& to) {
  std::vector<std::pair<TensorData*, TensorData*>> found;
  for (auto& [file, shard] : s.shards) {
    for (TensorData& t : shard) {
      if (t.name.starts_with(from)) found.emplace_back(&t, &s.at(other_prefix(t.name, from, to)));
    }
  }
  if (found.empty()) throw std::runtime_error("no tensor below " + from);
  for (const auto& [a, b] : found) {
    if (a->bytes.size() != b->bytes.size()) throw std::runtime_error(a->name + " and " + b->name + " differ");
  }
  return found;
}

/// The lists of unquantized modules, wherever a file has one.
void edit_lists(Save& s, const std::function<void(Json&)>& change) {
  constexpr std::string_view keys[] = {"ignore", "exclude_modules", "modules_to_not_convert"};
  size_t edited = 0;
  for (const auto& [file, object] :
       {std::pair{"config.json", "quantization_config"}, {"hf_quant_config.json", "quantization"}}) {
    if (!s.files.contains(file)) continue;
    s.edit(file, [&](Json& j) {
      if (!j.contains(object)) return;
      for (const std::string_view key : keys) {
        if (!j[object].contains(key)) continue;
        change(j[object][key]);
        ++edited;
      }
    });
  }
  if (edited == 0) throw std::runtime_error("no list of unquantized modules");
}

}  // namespace

Json& at_path(Json& json, std::string_view path) {
  const size_t dot = path.find('.');
  Json& member = json[path.substr(0, dot)];
  return dot == path.npos ? member : at_path(member, path.substr(dot + 1));
}

Change set_key(std::string path, Json value) {
  return [=](Save& s, auto&) { s.edit("config.json", [&](Json& j) { at_path(j, path) = value; }); };
}

Change erase_key(std::string path) {
  return [=](Save& s, auto&) {
    s.edit("config.json", [&](Json& j) {
      const size_t dot = path.rfind('.');
      Json& object = dot == path.npos ? j : at_path(j, std::string_view(path).substr(0, dot));
      if (object.erase(path.substr(dot + 1)) == 0) throw std::runtime_error("no key " + path);
    });
  };
}

Change edit_key(std::string path, std::function<void(Json&)> change) {
  return [=](Save& s, auto&) { s.edit("config.json", [&](Json& j) { change(at_path(j, path)); }); };
}

Change set_hf(std::string path, Json value) {
  return [=](Save& s, auto&) { s.edit("hf_quant_config.json", [&](Json& j) { at_path(j, path) = value; }); };
}

Change set_both(std::string config_path, std::string hf_path, Json value) {
  return all_of({set_key(std::move(config_path), value), set_hf(std::move(hf_path), value)});
}

Change ignore_also(std::vector<std::string> names) {
  return [=](Save& s, auto&) {
    edit_lists(s, [&](Json& list) {
      for (const std::string& name : names) list.push_back(name);
    });
  };
}

Change ignore_no_more(std::string part) {
  return [=](Save& s, auto&) {
    size_t gone = 0;
    edit_lists(s, [&](Json& list) {
      Json kept = Json::array();
      for (const Json& name : list) {
        if (name.get<std::string>().find(part) == std::string::npos) kept.push_back(name);
      }
      gone += list.size() - kept.size();
      list = kept;
    });
    if (gone == 0) throw std::runtime_error("no list names " + part);
  };
}

Change all_of(std::vector<Change> changes) {
  return [=](Save& s, std::mt19937& random) {
    for (const Change& change : changes) change(s, random);
  };
}

std::vector<TensorData*> tensors(Save& s, std::string_view pattern) {
  const size_t star = pattern.find('*');
  const std::string_view begin = pattern.substr(0, star),
                         end = star == pattern.npos ? std::string_view() : pattern.substr(star + 1);
  std::vector<TensorData*> found;
  for (auto& [file, shard] : s.shards) {
    for (TensorData& t : shard) {
      const bool fits = star == pattern.npos ? t.name == pattern
                                             : t.name.size() >= begin.size() + end.size() &&
                                                   t.name.starts_with(begin) && t.name.ends_with(end);
      if (fits) found.push_back(&t);
    }
  }
  if (found.empty()) throw std::runtime_error("no tensor " + std::string(pattern));
  return found;
}

Change drop(std::string pattern) {
  return [=](Save& s, auto&) {
    std::vector<std::string> names;
    for (const TensorData* t : tensors(s, pattern)) names.push_back(t->name);
    for (const std::string& name : names) s.erase(name);
  };
}

Change drop_below(std::string prefix) {
  return [=](Save& s, auto&) { s.erase_below(prefix); };
}

Change rename(std::string from, std::string to) {
  return [=](Save& s, auto&) {
    for (TensorData* t : tensors(s, from + "*")) t->name = other_prefix(t->name, from, to);
  };
}

Change copy_bytes(std::string from, std::string to) {
  return [=](Save& s, auto&) {
    for (const auto& [a, b] : pairs(s, from, to)) b->bytes = a->bytes;
  };
}

Change swap_bytes(std::string a, std::string b) {
  return [=](Save& s, auto&) {
    for (const auto& [first, second] : pairs(s, a, b)) std::swap(first->bytes, second->bytes);
  };
}

Change add_copy(std::string from, std::string to) {
  return [=](Save& s, auto&) {
    Tensors copies;
    for (const TensorData* t : tensors(s, from + "*")) {
      copies.push_back(*t);
      copies.back().name = other_prefix(t->name, from, to);
    }
    for (const TensorData& t : copies) s.add(t);
  };
}

Change add_bf16(std::string name, std::vector<int64_t> shape) {
  return [=](Save& s, std::mt19937& random) {
    size_t count = 1;
    for (const int64_t n : shape) count *= static_cast<size_t>(n);
    TensorData t{name, DType::kBF16, shape, std::vector<uint8_t>(2 * count)};
    for (size_t i = 0; i < count; ++i)
      to_bf16(0.02f * (static_cast<float>(random() % 2001) / 1000 - 1), t.bytes.data() + 2 * i);
    s.add(t);
  };
}

Change add_f32(std::string name, float value, std::vector<int64_t> shape) {
  return [=](Save& s, auto&) {
    TensorData t{name, DType::kF32, shape, std::vector<uint8_t>(4)};
    std::memcpy(t.bytes.data(), &value, 4);
    s.add(t);
  };
}

size_t row_bytes(const TensorData& t) {
  return t.shape.empty() || t.shape[0] == 0 ? t.bytes.size()
                                            : t.bytes.size() / static_cast<size_t>(t.shape[0]);
}

Change resize_rows(std::string pattern, int64_t rows) {
  return edit_tensors(std::move(pattern), [=](TensorData& t) {
    t.bytes.resize(row_bytes(t) * static_cast<size_t>(rows));
    t.shape.at(0) = rows;
  });
}

Change cut_columns(std::string pattern, int64_t columns) {
  return edit_tensors(std::move(pattern), [=](TensorData& t) {
    const auto all = static_cast<size_t>(t.shape.back()), kept = static_cast<size_t>(columns);
    std::vector<uint8_t> bytes;
    size_t rows = 1;
    for (size_t i = 0; i + 1 < t.shape.size(); ++i) rows *= static_cast<size_t>(t.shape[i]);
    const size_t row = t.bytes.size() / rows;
    for (size_t r = 0; r < rows; ++r) {
      const auto begin = t.bytes.begin() + static_cast<long>(r * row);
      bytes.insert(bytes.end(), begin, begin + static_cast<long>(row / all * kept));
    }
    t.bytes = bytes;
    t.shape.back() = columns;
  });
}

Change map_floats(std::string pattern, std::function<float(float)> f) {
  return edit_tensors(std::move(pattern), [=](TensorData& t) {
    if (t.dtype == DType::kF32) {
      for (size_t i = 0; i < t.bytes.size(); i += 4) {
        float value = 0;
        std::memcpy(&value, t.bytes.data() + i, 4);
        value = f(value);
        std::memcpy(t.bytes.data() + i, &value, 4);
      }
    } else if (t.dtype == DType::kBF16) {
      for (size_t i = 0; i < t.bytes.size(); i += 2)
        to_bf16(f(from_bf16(t.bytes.data() + i)), t.bytes.data() + i);
    } else {
      throw std::runtime_error(t.name + " is not floats");
    }
  });
}

Change set_floats(std::string pattern, float value) {
  return map_floats(std::move(pattern), [=](float) { return value; });
}

Change map_bytes(std::string pattern, std::function<uint8_t(uint8_t, size_t, std::mt19937&)> f) {
  return [=](Save& s, std::mt19937& random) {
    for (TensorData* t : tensors(s, pattern)) {
      for (size_t i = 0; i < t->bytes.size(); ++i) t->bytes[i] = f(t->bytes[i], i, random);
    }
  };
}

Change map_rows(std::string pattern, std::function<void(int64_t, uint8_t*, size_t)> f) {
  return edit_tensors(std::move(pattern), [=](TensorData& t) {
    const size_t row = row_bytes(t);
    for (size_t r = 0; r * row < t.bytes.size(); ++r)
      f(static_cast<int64_t>(r), t.bytes.data() + r * row, row);
  });
}

Change edit_tensors(std::string pattern, std::function<void(TensorData&)> f) {
  return [=](Save& s, auto&) {
    for (TensorData* t : tensors(s, pattern)) f(*t);
  };
}

Change widen(std::string pattern) {
  return edit_tensors(std::move(pattern), [](TensorData& t) {
    if (t.dtype != DType::kBF16) throw std::runtime_error(t.name + " is not BF16");
    std::vector<uint8_t> bytes;
    for (size_t i = 0; i < t.bytes.size(); i += 2)
      bytes.insert(bytes.end(), {0, 0, t.bytes[i], t.bytes[i + 1]});
    t.bytes = bytes;
    t.dtype = DType::kF32;
  });
}

Change dequantize(std::string module) {
  return [=](Save& s, auto&) {
    const bool packed = [&] {
      for (const TensorData* t : tensors(s, module + ".*")) {
        if (t->name.ends_with(".weight_packed")) return true;
      }
      return false;
    }();
    const TensorData codes = s.at(module + (packed ? ".weight_packed" : ".weight"));
    const TensorData scales = s.at(module + ".weight_scale");
    float global = 0;
    std::memcpy(&global, s.at(module + (packed ? ".weight_global_scale" : ".weight_scale_2")).bytes.data(),
                4);
    if (packed) global = 1 / global;
    TensorData plain{module + ".weight", DType::kBF16, {codes.shape[0], 2 * codes.shape[1]}, {}};
    plain.bytes.resize(4 * codes.bytes.size());
    for (size_t i = 0; i < 2 * codes.bytes.size(); ++i) {
      const unsigned code = codes.bytes[i / 2] >> (i % 2 * 4) & 15u;
      const double value = slow_e2m1(code) * slow_e4m3(scales.bytes[i / 16]) * static_cast<double>(global);
      to_bf16(static_cast<float>(value), plain.bytes.data() + 2 * i);
    }
    s.erase_below(module + ".");
    s.add(plain);
  };
}

}  // namespace twofour::spoil
