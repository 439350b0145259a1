/* Stands in for the parts of the CUDA runtime that CuTe DSL's compiled launchers call, and writes the launch down.
 *
 * Linked with the launcher's object file by _fa4_record.py. No GPU and no driver: every query answers as a B200 would,
 * loading does nothing, and the launch goes as one JSON object into the file named by RECORD_FILE: grid (CTAs), block,
 * cluster, dynamic shared memory, and the bytes of each kernel parameter, whose sizes RECORD_PARAM_BYTES lists.
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
  *value = name == SM_COUNT ? 148 : name == MAJOR ? 10 : name == SHARED_OPT_IN ? 232448 : 0;
  return 0;
}
int _cudaFuncSetAttribute(void *function, int name, int value) { (void)function, (void)name, (void)value; return 0; }
int _cudaKernelSetAttributeForDevice(void *kernel, int name, int value, int device) {
  (void)kernel, (void)name, (void)value, (void)device;
  return 0;
}
int _cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
  (void)library;
  *kernel = (void *)name;
  return 0;
}
int _cudaLibraryLoadData(void **library) { *library = (void *)1; return 0; }
int cuda_dialect_init_library_once(void **library) { *library = (void *)1; return 0; }
int cuda_dialect_unload_library_once(void **library) { (void)library; return 0; }

static void failed(int error) { fprintf(stderr, "the launcher reports CUDA error %d\n", error); exit(3); }
void CuteDSLRT_TVMFFISetRaisedCudaError(int error) { failed(error); }
void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(int error) { failed(error); }

int _cudaLaunchKernelEx(Config *config, void *kernel, void **arguments) {
  (void)kernel;
  Dim3 cluster = {1, 1, 1};
  for (unsigned i = 0; i < config->count; i++)
    if (config->attributes[i].id == ATTRIBUTE_CLUSTER) cluster = config->attributes[i].value.dim;
  FILE *file = fopen(getenv("RECORD_FILE"), "w");
  if (!file) return 1;
  fprintf(file, "{\"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], \"cluster\": [%u, %u, %u], ", config->grid.x,
          config->grid.y, config->grid.z, config->block.x, config->block.y, config->block.z, cluster.x, cluster.y,
          cluster.z);
  fprintf(file, "\"shared_bytes\": %zu, \"params\": [", config->shared_bytes);
  char *sizes = strdup(getenv("RECORD_PARAM_BYTES"));
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
