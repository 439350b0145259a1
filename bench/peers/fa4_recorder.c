/* Stands in for the parts of the CUDA runtime that CuTe DSL's compiled launchers call, and writes the launch down.
 *
 * Linked with the launcher's object file by fa4_record.py. No GPU and no driver: every query answers as the device of
 * RECORD_DEVICE would ("148 10": multiprocessors and major compute capability), loading does nothing, and each launch
 * is appended as one line of JSON to the file named by RECORD_FILE: entry, grid (CTAs), block, cluster, dynamic shared
 * memory, and the bytes of each kernel parameter, whose sizes RECORD_PARAM_BYTES lists ("entry:8,4;other:128,8").
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ATTRIBUTE_CLUSTER = 4 };                                        /* cudaLaunchAttributeClusterDimension */
enum { SM_COUNT = 16, MAJOR = 75, MINOR = 76, SHARED_OPT_IN = 97 };    /* cudaDeviceAttr */

typedef struct { unsigned x, y, z; } Dim3;
typedef struct { int id; char pad[4]; union { char bytes[64]; Dim3 dim; } value; } Attribute;
typedef struct { Dim3 grid, block; size_t shared_bytes; void *stream; Attribute *attributes; unsigned count; } Config;

int _cudaGetDevice(int *device) { *device = 0; return 0; }
int _cudaSetDevice(int device) { (void)device; return 0; }
int _cuKernelGetAttribute(int *value, int name, void *kernel, int device) {
  (void)name, (void)kernel, (void)device;
  *value = 0;
  return 0;
}
int _cudaDeviceGetAttribute(int *value, int name, int device) {
  (void)device;
  int count = 0, major = 0;
  if (sscanf(getenv("RECORD_DEVICE"), "%d %d", &count, &major) != 2) return 1;
  *value = name == SM_COUNT ? count : name == MAJOR ? major : name == SHARED_OPT_IN ? 232448 : 0;
  return 0;
}
int _cudaFuncSetAttribute(void *function, int name, int value) { (void)function, (void)name, (void)value; return 0; }
int _cudaKernelSetAttributeForDevice(void *kernel, int name, int value, int device) {
  (void)kernel, (void)name, (void)value, (void)device;
  return 0;
}
int _cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
  (void)library;
  *kernel = strdup(name); /* the launcher's copy is on its stack */
  return 0;
}
int _cudaLibraryLoadData(void **library) { *library = (void *)1; return 0; }
int cuda_dialect_init_library_once(void **library, int (*load)(void **), int (*load_kernels)(void **, int)) {
  if (*library) return 0;
  int error = load(library);
  return error ? error : load_kernels(library, 0);
}
int cuda_dialect_unload_library_once(void **library) { (void)library; return 0; }

static void failed(int error) { fprintf(stderr, "the launcher reports CUDA error %d\n", error); exit(3); }
void CuteDSLRT_TVMFFISetRaisedCudaError(int error) { failed(error); }
void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(int error) { failed(error); }

/* Where the sizes of the parameters of this entry begin in RECORD_PARAM_BYTES; NULL when it is not there. */
static const char *sizes_of(const char *entry) {
  size_t length = strlen(entry);
  for (const char *at = getenv("RECORD_PARAM_BYTES"); at; at = strchr(at, ';')) {
    at += *at == ';';
    if (!strncmp(at, entry, length) && at[length] == ':') return at + length + 1;
  }
  return NULL;
}

int _cudaLaunchKernelEx(Config *config, void *kernel, void **arguments) {
  Dim3 cluster = {1, 1, 1};
  for (unsigned i = 0; i < config->count; i++)
    if (config->attributes[i].id == ATTRIBUTE_CLUSTER) cluster = config->attributes[i].value.dim;
  const char *list = sizes_of(kernel);
  FILE *file = list ? fopen(getenv("RECORD_FILE"), "a") : NULL;
  if (!file) return 1;
  fprintf(file, "{\"entry\": \"%s\", ", (const char *)kernel);
  fprintf(file, "\"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], \"cluster\": [%u, %u, %u], ", config->grid.x,
          config->grid.y, config->grid.z, config->block.x, config->block.y, config->block.z, cluster.x, cluster.y,
          cluster.z);
  fprintf(file, "\"shared_bytes\": %zu, \"params\": [", config->shared_bytes);
  char *sizes = strndup(list, strcspn(list, ";"));
  const char *separator = "";
  for (char *size = strtok(sizes, ","); size; size = strtok(NULL, ","), arguments++, separator = ", ") {
    fprintf(file, "%s\"", separator);
    for (int i = 0; i < atoi(size); i++) fprintf(file, "%02x", ((uint8_t *)*arguments)[i]);
    fprintf(file, "\"");
  }
  fprintf(file, "]}\n");
  fclose(file);
  free(sizes);
  return 0;
}
