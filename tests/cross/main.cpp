// Runs one call; see stub_runtime.h.

int main() {
  using namespace hybridge;
  const auto found = kernels().find(get_many<std::string>());
  if (found == kernels().end()) return 3;
  found->second();
  for (const Tensor& tensor : seen()) std::fwrite(tensor.bytes->data(), tensor.bytes->size(), 1, stdout);
}
