// Has CUPTI, the library that NVIDIA's profilers are made of, tell the ranges of the program that loads this: NVTX does where
// NVTX_INJECTION64_PATH names it. ESPER_CUPTI is the path of CUPTI; at the end a line for each range, `begin NAME` or `end`, goes to
// the file ESPER_RANGES. Names and values are those of `cupti_activity.h`.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { MARKER = 12, FLUSH_FORCED = 1, MARKER_START = 2, MARKER_END = 4, BUFFER_BYTES = 1 << 20 };

// CUpti_ActivityMarker2
struct marker {
    int kind;
    int flags;
    uint64_t timestamp;
    uint32_t id;
    int object_kind;
    uint32_t object[3];
    uint32_t pad;
    const char *name;
    const char *domain;
};

static void *cupti;
static FILE *out;

static void *function(const char *name) {
    void *found = dlsym(cupti, name);
    if (!found) {
        fprintf(stderr, "%s is not in CUPTI\n", name);
        abort();
    }
    return found;
}

static void give_buffer(uint8_t **buffer, size_t *size, size_t *max_records) {
    *buffer = aligned_alloc(8, BUFFER_BYTES);
    *size = BUFFER_BYTES;
    *max_records = 0;
}

static void take_buffer(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    int (*next)(uint8_t *, size_t, struct marker **) = function("cuptiActivityGetNextRecord");
    struct marker *marker = NULL;
    (void)context, (void)stream, (void)size;
    while (next(buffer, valid, &marker) == 0) {
        if (marker->kind != MARKER) continue;
        if (marker->flags & MARKER_START) fprintf(out, "begin %s\n", marker->name);
        if (marker->flags & MARKER_END) fprintf(out, "end\n");
    }
    free(buffer);
}

static void finish(void) {
    ((int (*)(uint32_t))function("cuptiActivityFlushAll"))(FLUSH_FORCED);
    fclose(out);
}

int InitializeInjectionNvtx2(void *get_export_table) {
    cupti = dlopen(getenv("ESPER_CUPTI"), RTLD_NOW | RTLD_GLOBAL);
    out = fopen(getenv("ESPER_RANGES"), "w");
    if (!cupti || !out) {
        fprintf(stderr, "no CUPTI, or no file for ranges: %s\n", cupti ? "" : dlerror());
        abort();
    }
    ((int (*)(void *, void *))function("cuptiActivityRegisterCallbacks"))(give_buffer, take_buffer);
    int code = ((int (*)(int))function("cuptiActivityEnable"))(MARKER);
    if (code) fprintf(stderr, "CUPTI's error %d\n", code);
    atexit(finish);
    return ((int (*)(void *))function("InitializeInjectionNvtx2"))(get_export_table);
}
