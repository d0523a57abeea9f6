// Stands in for libopenvino_c: fails, or answers NaN, at the n-th inference. Everything else is the real library's.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stddef.h>

static int left = -1, fills = 0;
static void* outputs[64];
static size_t count;

// Fails the n-th inference from now on, from 1; with_nan: fills its outputs instead.
void fail_at(int n, int with_nan) { left = n, fills = with_nan; }

typedef int (*Set)(void*, size_t, void*);
typedef int (*Infer)(void*);
typedef int (*Data)(void*, void**);
typedef int (*Size)(void*, size_t*);

int ov_infer_request_set_output_tensor_by_index(void* request, size_t index, void* tensor) {
  if (index == 0) count = 0;
  if (count < 64) outputs[count++] = tensor;
  return ((Set)dlsym(RTLD_NEXT, "ov_infer_request_set_output_tensor_by_index"))(request, index, tensor);
}

int ov_infer_request_infer(void* request) {
  const int is_it = left > 0 && --left == 0;
  if (is_it && !fills) return -1;
  const int status = ((Infer)dlsym(RTLD_NEXT, "ov_infer_request_infer"))(request);
  for (size_t i = 0; is_it && i < count; ++i) {
    float* data;
    size_t size;
    ((Data)dlsym(RTLD_NEXT, "ov_tensor_data"))(outputs[i], (void**)&data);
    ((Size)dlsym(RTLD_NEXT, "ov_tensor_get_size"))(outputs[i], &size);
    for (size_t j = 0; j < size; ++j) data[j] = NAN;
  }
  return status;
}
