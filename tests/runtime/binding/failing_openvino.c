// Stands in for libopenvino_c: fails, or answers NaN, at the n-th inference, and counts parts that are loaded. Everything
// else is the library REAL's.
#include <dlfcn.h>
#include <math.h>
#include <stddef.h>

static int left = -1, fills = 0, imports = 0;
static float* outputs[64];
static size_t sizes[64], count;

// Fails the n-th inference from now on, from 1; with_nan: fills its outputs instead.
void fail_at(int n, int with_nan) { left = n, fills = with_nan; }

// Parts that were loaded so far.
int imported(void) { return imports; }

static void* real(const char* name) { return dlsym(dlopen(REAL, RTLD_LAZY), name); }

typedef int (*Import)(void*, const char*, size_t, const char*, void**);
typedef int (*Set)(void*, size_t, void*);
typedef int (*Infer)(void*);
typedef int (*Data)(void*, void**);
typedef int (*Size)(void*, size_t*);

int ov_core_import_model(void* core, const char* part, size_t size, const char* device, void** model) {
  ++imports;
  return ((Import)real("ov_core_import_model"))(core, part, size, device, model);
}

int ov_infer_request_set_output_tensor_by_index(void* request, size_t index, void* tensor) {
  if (index == 0) count = 0;
  ((Data)real("ov_tensor_data"))(tensor, (void**)&outputs[count]);  // the caller frees the tensor before the inference
  ((Size)real("ov_tensor_get_size"))(tensor, &sizes[count++]);
  return ((Set)real("ov_infer_request_set_output_tensor_by_index"))(request, index, tensor);
}

int ov_infer_request_infer(void* request) {
  const int is_it = left > 0 && --left == 0;
  if (is_it && !fills) return -1;
  const int status = ((Infer)real("ov_infer_request_infer"))(request);
  for (size_t i = 0; is_it && i < count; ++i)
    for (size_t j = 0; j < sizes[i]; ++j) outputs[i][j] = NAN;
  return status;
}
