// A program that is a table of the caller's functions.
#ifndef HYBRIDGE_C_API_PROGRAM_TABLE_H
#define HYBRIDGE_C_API_PROGRAM_TABLE_H

#include <atomic>
#include <cstddef>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hybridge/hybridge_dev.h>

#include "engine/program.h"

#include "c_api/failure.h"

namespace hybridge::c {

inline constexpr std::pair<hybridge_type, Type> TYPES[] = {
    {HYBRIDGE_UINT8, Type::uint8},     {HYBRIDGE_INT8, Type::int8},    {HYBRIDGE_INT64, Type::int64},
    {HYBRIDGE_FLOAT32, Type::float32}, {HYBRIDGE_BOOL, Type::boolean}, {HYBRIDGE_FLOAT16, Type::float16},
};

// An array as C sees it; nothing where it has more dimensions or another type than there are names for.
std::optional<hybridge_array> shown(const char* name, const Array& array);

std::optional<Array> taken(const hybridge_array& array);

// The functions, closed once nobody refers to them.
struct Table {
  explicit Table(const hybridge_program& given) : functions(given) {}
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  ~Table();

  hybridge_program functions;
};

class TableProgram final : public Program {
 public:
  TableProgram(std::shared_ptr<const Table> table, Names names, Names bounded);

  Result<std::span<const Array>> call(std::string_view name, std::initializer_list<Array> inputs) override;

  Result<Array> buffer(const std::string& name) override;

 private:
  static Status failed(std::string_view name);

  static constexpr size_t MOST_OUTPUTS = 8;
  static constexpr int UNDONE = -2;

  std::shared_ptr<const Table> table_;
  std::map<std::string, size_t> sizes_;
  std::vector<Array> outputs_;
};

class TableModel final : public Model {
 public:
  static Result<std::shared_ptr<const Model>> open(const hybridge_program& given);

  Result<std::unique_ptr<Program>> program() const override;

 private:
  TableModel(const hybridge_program& given, ModelInfo info);

  std::shared_ptr<const Table> table_;
  Names names_, bounded_;
  mutable std::atomic<bool> taken_ = false;
};

}  // namespace hybridge::c

#endif
