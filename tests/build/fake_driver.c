// A CUDA driver without a GPU: records what it is told and runs the self-test kernel on the CPU.
// FAKE_GPUS="9.0,12.0" says which GPUs there are, FAKE_CUDA="13000" which CUDA it runs.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODULES 64

typedef struct {
    unsigned* out;
    int count;
    unsigned short multiplier;
    unsigned long long offset;
    float scale;
} SelftestParams;

typedef struct {
    uint64_t context, function, stream;
    unsigned grid[3], block[3], shared;
    unsigned char params[256];
} Launch;

static _Thread_local uint64_t stack[16];
static _Thread_local int depth;
static int modules, functions, shared_limit;
static char names[MODULES][64];
static Launch last;

// What the tests ask.
int fake_modules(void) {
    return modules;
}
int fake_shared_limit(void) {
    return shared_limit;
}
const Launch* fake_last(void) {
    return &last;
}
void fake_push(uint64_t context) {
    stack[depth++] = context;
}
int fake_depth(void) {
    return depth;
}

static int capability(int device, int* major, int* minor) {
    const char* list = getenv("FAKE_GPUS");
    int count = 0;
    for (const char* at = list; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        int a, b;
        if (sscanf(at, "%d.%d", &a, &b) == 2 && count++ == device) *major = a, *minor = b;
    }
    return count;
}

int cuInit(unsigned flags) {
    int major, minor;
    return flags || capability(-1, &major, &minor) == 0 ? 100 : 0;
}
int cuGetExportTable(const void** table, const void* id) {  // NVRTC asks, and does without
    *table = NULL;
    return 500;
}
int cuGetErrorName(int error, const char** text) {
    *text = error == 100 ? "CUDA_ERROR_NO_DEVICE" : error == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR_OTHER";
    return 0;
}
int cuGetErrorString(int error, const char** text) {
    *text = error == 100 ? "no CUDA-capable device is detected" : "something else";
    return 0;
}
int cuDriverGetVersion(int* version) {
    *version = getenv("FAKE_CUDA") ? atoi(getenv("FAKE_CUDA")) : 13000;
    return 0;
}
int cuDeviceGetCount(int* count) {
    int major, minor;
    *count = capability(-1, &major, &minor);
    return 0;
}
int cuDeviceGet(int* device, int index) {
    int major, minor;
    *device = index;
    return index < 0 || index >= capability(-1, &major, &minor) ? 101 : 0;
}
int cuDeviceGetName(char* name, int size, int device) {
    snprintf(name, size, "Fake %d", device);
    return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    int major = 0, minor = 0;
    capability(device, &major, &minor);
    *value = attribute == 75 ? major : minor;
    return 0;
}
int cuDevicePrimaryCtxRetain(uint64_t* context, int device) {
    *context = 0x1000 + device;
    return 0;
}
int cuCtxGetCurrent(uint64_t* context) {
    *context = depth ? stack[depth - 1] : 0;
    return 0;
}
int cuCtxPushCurrent_v2(uint64_t context) {
    if (context < 0x1000) return 201;
    stack[depth++] = context;
    return 0;
}
int cuCtxPopCurrent_v2(uint64_t* context) {
    if (!depth) return 201;
    *context = stack[--depth];
    return 0;
}
int cuModuleLoadData(uint64_t* module, const char* image) {
    if (memcmp(image,
               "\x7f"
               "ELF",
               4) != 0)
        return 200;
    if (getenv("FAKE_REFUSES")) return 209;
    if (getenv("FAKE_CRASHES")) abort();
    *module = 0x2000 + __sync_fetch_and_add(&modules, 1);
    return 0;
}
int cuModuleGetFunction(uint64_t* function, uint64_t module, const char* name) {
    int index = __sync_fetch_and_add(&functions, 1) % MODULES;
    snprintf(names[index], sizeof names[index], "%s", name);
    *function = 0x3000 + index;
    return 0;
}
int cuFuncGetParamInfo(uint64_t function, size_t index, size_t* offset, size_t* size) {
    *offset = 0;
    *size = sizeof(SelftestParams);
    return index != 0;
}
int cuFuncSetAttribute(uint64_t function, int attribute, int value) {
    if (attribute != 8 || value > 227 * 1024) return 1;
    shared_limit = value;
    return 0;
}
int cuLaunchKernel(uint64_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, uint64_t stream, void** params, void** extra) {
    if (extra || bx * by * bz > 1024) return 1;
    Launch launch = {depth ? stack[depth - 1] : 0, function, stream, {gx, gy, gz}, {bx, by, bz}, shared, {0}};
    memcpy(launch.params, params[0], sizeof(SelftestParams));
    last = launch;
    if (strcmp(names[function - 0x3000], "vc_selftest") == 0 && !getenv("FAKE_COMPUTES_NOTHING")) {
        SelftestParams p;
        memcpy(&p, params[0], sizeof p);
        for (int i = 0; i < p.count && i < (int)(gx * bx) && p.out; i++)
            p.out[i] = (unsigned)(i * (unsigned long long)p.multiplier + p.offset) + (unsigned)lrintf(p.scale);
    }
    return 0;
}
int cuMemAlloc_v2(uint64_t* memory, size_t size) {
    *memory = (uint64_t)calloc(1, size);
    return 0;
}
int cuMemFree_v2(uint64_t memory) {
    free((void*)memory);
    return 0;
}
int cuMemcpyDtoH_v2(void* host, uint64_t memory, size_t size) {
    memcpy(host, (void*)memory, size);
    return 0;
}
