// For tests on a machine without a GPU: the functions that headrace takes from torch's CUDA library. Copies are never made; an event has
// passed once it was asked for often enough. What it was told is read by name. A call in the wrong capture mode or on the wrong device
// counts as a fault.
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

atomic_long locked, locked_bytes, unlocked, recorded, destroyed, waited, faults;
atomic_long refuses;      // Pages are not locked.
atomic_long captures;     // The current stream is captured.
atomic_long looks_wanted; // Before an event has passed.

enum { kRelaxed = 2, kDevice = 1, kOutOfMemory = 2, kNotReady = 600 };

static _Thread_local int mode = 0;    // "Global", as each thread begins.
static _Thread_local int device = 0;
struct Event { atomic_long looks; };
enum { kRangesMax = 64 };
static struct Range { uintptr_t begin; size_t bytes; } ranges[kRangesMax];

static void check_thread(void) {
  if (mode != kRelaxed || device != kDevice) ++faults;
}

int cudaHostRegister(void* memory, size_t bytes, unsigned flags) {
  check_thread();
  if ((uintptr_t)memory % 64 != 0 || flags != 1) ++faults;
  if (refuses) return kOutOfMemory;
  const long place = locked++;
  if (place < kRangesMax) ranges[place] = (struct Range){(uintptr_t)memory, bytes};
  locked_bytes += (long)bytes;
  return 0;
}
// Whether these bytes lie in memory that was locked.
int is_within_locked(uintptr_t begin, size_t bytes) {
  for (long i = 0; i < locked && i < kRangesMax; ++i) {
    if (begin >= ranges[i].begin && begin + bytes <= ranges[i].begin + ranges[i].bytes) return 1;
  }
  return 0;
}
int cudaHostUnregister(void* memory) {
  (void)memory;
  check_thread();
  ++unlocked;
  return 0;
}
int cudaEventCreateWithFlags(struct Event** event, unsigned flags) {
  check_thread();
  if (flags != 2) ++faults;
  *event = calloc(1, sizeof(struct Event));
  return *event == NULL ? kOutOfMemory : 0;
}
int cudaEventDestroy(struct Event* event) {
  ++destroyed;
  free(event);
  return 0;
}
int cudaEventRecord(struct Event* event, void* stream) {
  check_thread();
  if (stream != (void*)&captures) ++faults;
  event->looks = 0;
  ++recorded;
  return 0;
}
int cudaEventQuery(struct Event* event) {
  check_thread();
  return event->looks++ < looks_wanted ? kNotReady : 0;
}
int cudaEventSynchronize(struct Event* event) {
  (void)event;
  check_thread();
  ++waited;
  return 0;
}
int cudaStreamIsCapturing(void* stream, int* capture) {
  (void)stream;
  *capture = captures != 0;
  return 0;
}
int cudaThreadExchangeStreamCaptureMode(int* exchanged) {
  const int before = mode;
  mode = *exchanged;
  *exchanged = before;
  return 0;
}
int cudaGetDevice(int* current) {
  *current = device;
  return 0;
}
int cudaSetDevice(int wanted) {
  device = wanted;
  return 0;
}
int cudaGetLastError(void) { return 0; }
const char* cudaGetErrorString(int status) { return status == kOutOfMemory ? "out of memory" : "another error"; }
#ifndef WITHOUT_STREAM
int32_t aoti_torch_get_current_cuda_stream(int32_t of_device, void** stream) {
  if (of_device != kDevice) ++faults;
  *stream = (void*)&captures;
  return 0;
}
#endif
