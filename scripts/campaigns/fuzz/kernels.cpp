// Runs the calls that it reads, each behind its length, and answers each with a line; see target.py and stub_runtime.h.
//
// Every tensor ends where its memory ends, so that the sanitizers see what a kernel touches behind it. A call that is
// refused must leave all tensors but the output, which is the last, as they were, unless they share their memory. Each
// call is made again and again, first with no scratch memory at all, then with one request for it granted, and so on,
// until it needs no more.
#include <cstring>

namespace hybridge {
static std::map<std::string, const char* (*)()>& kernels() {
  static std::map<std::string, const char* (*)()> all;
  return all;
}

bool add_kernel(const char*, const char* name, const char* (*call)()) { return kernels().emplace(name, call).second; }
}  // namespace hybridge

namespace {

using namespace hybridge;

std::string answer(const char* (*kernel)()) {
  const char* refused = kernel();
  if (!refused) return "accepted";
  for (size_t i = 0; i + 1 < seen().size() && !some_share_memory(); ++i)
    if (*seen()[i].bytes != given()[i])
      return "wrong: it refused (" + std::string(refused) + ") and wrote to tensor " + std::to_string(i);
  return "refused: " + std::string(refused);
}

// Runs a call where `granted` requests for scratch memory succeed. has_enough: it made no more of them.
std::string run(std::vector<char>& call, int64_t granted, bool& has_enough) {
  for (const Tensor& tensor : seen()) delete tensor.bytes;
  seen().clear(), given().clear(), some_share_memory() = false;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(fmemopen(call.data(), call.size(), "r"), std::fclose);
  source() = file.get();
  const auto found = kernels().find(get_many<std::string>());
  if (found == kernels().end()) std::exit(3);
  scratch_left() = granted;
  const std::string said = answer(found->second);
  has_enough = scratch_left() >= 0;
  if (!has_enough && said == "accepted") return "wrong: it had no memory, and went on";
  return said;
}

}  // namespace

int main(int count, char**) {
  if (count > 1) {  // any argument: the kernels' names
    for (const auto& each : kernels()) std::puts(each.first.c_str());
    return 0;
  }
  uint32_t length;
  while (std::fread(&length, sizeof length, 1, stdin) == 1) {
    std::vector<char> call(length);
    if (std::fread(call.data(), length, 1, stdin) != 1) return 2;
    std::string said;
    bool has_enough = false;
    for (int64_t granted = 0; !has_enough && !said.starts_with("wrong"); ++granted)
      said = run(call, granted, has_enough);
    std::puts(said.c_str());
    std::fflush(stdout);
  }
}
