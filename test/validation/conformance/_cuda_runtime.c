/* Stands in for the CUDA runtime in a library that nvcc has made, and writes down what its host code asks for.
 *
 * No GPU and no driver: queries answer as the device of `record_to` would, device memory is what the caller says it is,
 * and each launch, copy to the device and fill is one line of JSON: entry, grid (CTAs), block, cluster, dynamic shared
 * memory and the bytes of each parameter; or an address and the bytes that go there. Tensor maps are encoded by the bit
 * layout that runtime/emulator/machine/tensormap.py reads. Compiled with the peers' own cuda_runtime_api.h.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KERNELS = 4096, KNOWN = 8, SHARED_PER_SM = 233472, SHARED_OPT_IN = 232448, SHARED_STATIC = 49152 };
static const uint64_t ALLOCATIONS = 0x7F8000000000, ALLOCATION_STEP = 1 << 28;

static struct { const void *host; const char *entry; } kernels[KERNELS];
static struct { const void *address, *data; size_t count; } known[KNOWN];
static int kernel_count, known_count, sm_count, major_version;
static const char *parameter_bytes;
static FILE *events;
static struct { dim3 grid, block; size_t shared; cudaStream_t stream; } pushed;

/* Begins a record. `sizes` lists the parameters of each entry: "entry:8,4;other:128,8". */
void record_to(const char *path, const char *sizes, int multiprocessors, int major) {
  events = fopen(path, "a");
  parameter_bytes = strdup(sizes);
  sm_count = multiprocessors, major_version = major;
}

static void print_bytes(const void *data, size_t count) {
  fputc('"', events);
  for (size_t i = 0; i < count; i++) fprintf(events, "%02x", ((const uint8_t *)data)[i]);
  fputc('"', events);
}

/* Registration: nvcc's own code calls these when the library is loaded. */
void **__cudaRegisterFatBinary(void *binary) { (void)binary; static void *handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
char __cudaInitModule(void **handle) { (void)handle; return 1; }
void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int ext, size_t size, int constant, int global) {
  (void)handle, (void)host, (void)address, (void)name, (void)ext, (void)size, (void)constant, (void)global;
}
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, uint3 *tid,
                            uint3 *bid, dim3 *block, dim3 *grid, int *warp_size) {
  (void)handle, (void)device, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp_size;
  if (kernel_count == KERNELS) abort();
  kernels[kernel_count].host = host;
  kernels[kernel_count++].entry = name;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) { *kernel = (cudaKernel_t)host; return cudaSuccess; }
cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *host) { *function = (cudaFunction_t)host; return cudaSuccess; }

static const char *entry_of(const void *host) {
  for (int i = 0; i < kernel_count; i++)
    if (kernels[i].host == host) return kernels[i].entry;
  return NULL;
}

static const char *sizes_of(const char *entry) {
  size_t length = strlen(entry);
  for (const char *at = parameter_bytes; at; at = strchr(at, ';')) {
    at += *at == ';';
    if (!strncmp(at, entry, length) && at[length] == ':') return at + length + 1;
  }
  return NULL;
}

/* Launches. */
static cudaError_t launched(const void *function, dim3 grid, dim3 block, dim3 cluster, void **arguments, size_t shared) {
  const char *entry = entry_of(function), *list = entry ? sizes_of(entry) : NULL;
  if (!list) {
    fprintf(stderr, "a kernel is launched that the PTX does not have: %s\n", entry ? entry : "not registered");
    return cudaErrorInvalidDeviceFunction;
  }
  fprintf(events, "{\"entry\": \"%s\", \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], ", entry, grid.x, grid.y, grid.z,
          block.x, block.y, block.z);
  fprintf(events, "\"cluster\": [%u, %u, %u], \"shared_bytes\": %zu, \"params\": [", cluster.x, cluster.y, cluster.z, shared);
  const char *separator = "";
  while (*list && *list != ';') {
    char *end;
    long size = strtol(list, &end, 10);
    if (end == list) break;
    fputs(separator, events), separator = ", ";
    print_bytes(*arguments++, (size_t)size);
    list = *end == ',' ? end + 1 : end;
  }
  fputs("]}\n", events);
  fflush(events);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  (void)stream;
  return launched(function, grid, block, (dim3){1, 1, 1}, arguments, shared);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  dim3 cluster = {1, 1, 1};
  for (unsigned i = 0; i < config->numAttrs; i++)
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
      cluster = (dim3){config->attrs[i].val.clusterDim.x, config->attrs[i].val.clusterDim.y, config->attrs[i].val.clusterDim.z};
  return launched(function, config->gridDim, config->blockDim, cluster, arguments, config->dynamicSmemBytes);
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
  pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.stream = stream;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *(cudaStream_t *)stream = pushed.stream;
  return cudaSuccess;
}

/* Memory: only what goes to the device leaves a trace, and only what `lies_at` was told of can be read. */
void lies_at(const void *address, const void *data, size_t count) {
  if (known_count == KNOWN) abort();
  known[known_count].address = address, known[known_count].count = count;
  known[known_count++].data = memcpy(malloc(count), data, count);
}
static cudaError_t read_back(void *to, const void *from, size_t count) {
  for (int i = 0; i < known_count; i++)
    if (known[i].address == from && count <= known[i].count) {
      memcpy(to, known[i].data, count);
      return cudaSuccess;
    }
  return cudaErrorNotSupported;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream) {
  (void)stream;
  if (kind == cudaMemcpyDeviceToHost) return read_back(to, from, count);
  if (kind != cudaMemcpyHostToDevice) return cudaErrorNotSupported;
  fprintf(events, "{\"write\": %llu, \"bytes\": ", (unsigned long long)to);
  print_bytes(from, count);
  fputs("}\n", events);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t count, enum cudaMemcpyKind kind) { return cudaMemcpyAsync(to, from, count, kind, 0); }
cudaError_t cudaMemsetAsync(void *to, int value, size_t count, cudaStream_t stream) {
  (void)stream;
  fprintf(events, "{\"write\": %llu, \"byte\": %d, \"count\": %zu}\n", (unsigned long long)to, value & 255, count);
  return cudaSuccess;
}
cudaError_t cudaMemset(void *to, int value, size_t count) { return cudaMemsetAsync(to, value, count, 0); }

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t count) {
  return cudaMemcpy((void *)to, from, count, cudaMemcpyHostToDevice) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t count, CUstream stream) { (void)stream; return cuMemcpyHtoD_v2(to, from, count); }
cudaError_t cudaMalloc(void **pointer, size_t count) {
  static uint64_t next = ALLOCATIONS;
  *pointer = (void *)next;
  next += (count + ALLOCATION_STEP - 1) / ALLOCATION_STEP * ALLOCATION_STEP;
  fprintf(events, "{\"alloc\": %llu, \"bytes\": %zu}\n", (unsigned long long)*pointer, count);
  return cudaSuccess;
}
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t count) { return cudaMalloc((void **)pointer, count) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS; }
cudaError_t cudaFree(void *pointer) { (void)pointer; return cudaSuccess; }
CUresult cuMemFree_v2(CUdeviceptr pointer) { (void)pointer; return CUDA_SUCCESS; }

/* Streams, events and contexts: one of each, and nothing is ever under way. */
cudaError_t cudaEventCreate(cudaEvent_t *event) { *event = (cudaEvent_t)&kernel_count; return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { (void)flags; return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { (void)event; return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { (void)event, (void)stream; return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t event) { (void)event; return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { (void)event; return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) { (void)stream, (void)event, (void)flags; return cudaSuccess; }
CUresult cuCtxGetCurrent(CUcontext *context) { *context = (CUcontext)&kernel_count; return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { *device = 0; return CUDA_SUCCESS; }
CUresult cuCtxGetId(CUcontext context, unsigned long long *identity) { (void)context; *identity = 1; return CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) { (void)stream; *status = CU_STREAM_CAPTURE_STATUS_NONE; return CUDA_SUCCESS; }

/* Queries. */
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDA_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDA_VERSION; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { (void)device; return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaPeekAtLastError(void) { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t error) { static char text[32]; snprintf(text, sizeof text, "CUDA error %d", error); return text; }
const char *cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { (void)stream; return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) { (void)stream; *status = cudaStreamCaptureStatusNone; return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  (void)device;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = sm_count; break;
    case cudaDevAttrComputeCapabilityMajor: *value = major_version; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = SHARED_OPT_IN; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = SHARED_PER_SM; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = SHARED_STATIC; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    default: *value = 0;
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
  (void)device;
  memset(properties, 0, sizeof *properties);
  properties->major = major_version, properties->multiProcessorCount = sm_count, properties->warpSize = 32;
  properties->sharedMemPerBlockOptin = SHARED_OPT_IN, properties->sharedMemPerMultiprocessor = SHARED_PER_SM;
  properties->sharedMemPerBlock = SHARED_STATIC, properties->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
  (void)function;
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024, attributes->numRegs = 128;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *function, int threads, size_t shared, unsigned flags) {
  (void)function, (void)flags;
  int by_threads = 2048 / threads, by_shared = (int)(SHARED_PER_SM / (shared + 1024));
  *count = by_threads < by_shared ? by_threads : by_shared;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *function, int threads, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(count, function, threads, shared, 0);
}
cudaError_t cudaOccupancyMaxActiveClusters(int *count, const void *function, const cudaLaunchConfig_t *config) {
  (void)function, (void)config;
  *count = sm_count / 2;
  return cudaSuccess;
}

/* Tensor maps. */
static CUresult encode_tiled(CUtensorMap *map, CUtensorMapDataType type, unsigned rank, void *address, const cuuint64_t *extents,
                             const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave,
                             CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  static const uint8_t CODES[] = {0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 8, 7, 8, 11, 12, 13};
  static const uint8_t SWIZZLES[] = {0, 1, 2, 3, 3, 3, 3}, ATOMS[] = {0, 0, 0, 0, 1, 2, 3};
  uint32_t *w = (uint32_t *)map;
  memset(map, 0, sizeof *map);
  if (interleave || (unsigned)type >= sizeof CODES) return CUDA_ERROR_INVALID_VALUE;
  int is_tf32 = type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 || type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
  w[0] = (uint32_t)(uint64_t)address, w[1] = (uint32_t)((uint64_t)address >> 32);
  w[2] = (rank - 1) << 4 | CODES[type] << 7 | SWIZZLES[swizzle] << 13 | fill << 15 | is_tf32 << 16 | promotion << 17 | ATOMS[swizzle] << 19;
  for (unsigned i = 0; i + 1 < rank; i++) w[3 + i] = (uint32_t)(strides[i] >> 4), w[7] |= (uint32_t)(strides[i] >> 36) << 4 * i;
  for (unsigned i = 0; i < rank; i++) w[8 + i] = (uint32_t)(extents[i] - 1);
  w[13] = (box[0] - 1) << 24;
  for (unsigned i = 0; i < rank; i++) w[13] |= (steps[i] - 1) << 3 * i;
  for (unsigned i = 1; i < rank; i++) w[14] |= (box[i] - 1) << 8 * (i - 1);
  return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *extents,
                                const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
  return encode_tiled(map, type, rank, address, extents, strides, box, steps, interleave, swizzle, promotion, fill);
}
static CUresult driver_version(int *version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult error, const char **text) { (void)error; *text = "an error of the driver"; return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult error, const char **text) { return cuGetErrorString(error, text); }
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
  (void)version, (void)flags;
  *function = !strcmp(symbol, "cuTensorMapEncodeTiled") ? (void *)encode_tiled
              : !strcmp(symbol, "cuDriverGetVersion")   ? (void *)driver_version
                                                        : NULL;
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return *function ? cudaSuccess : cudaErrorSymbolNotFound;
}
cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
  return cudaGetDriverEntryPointByVersion(symbol, function, 0, flags, result);
}
