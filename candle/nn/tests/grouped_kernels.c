// The functions of the kernels, compiled for the processor: sizes, x, w and g as numbers come in; y, the gradients of x and w, and x as bf16 go out.
// With the name of a type: sizes, x, the largest elements y, g and its part of each element come in; both gradients of pooling go out.
// With `columns`: sizes, x and columns come in; what windows see of x, and what the columns give back, go out.
// With `norm`: its sizes, x, alpha and g come in; the gradients of x, alpha and beta go out.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grouped.cu"
#include "pool.cu"
#include "columns.cu"
#include "norm.cu"

static double* numbers(size_t count) {
    double* found = malloc(count * sizeof(double));
    if (!found || fread(found, sizeof(double), count, stdin) != count) exit(2);
    return found;
}

static void put(double value) {
    if (fwrite(&value, sizeof value, 1, stdout) != 1) exit(3);
}

#define POOL(T, K)                                                                        \
    static T* elements_##K(u32 count) {                                                   \
        double* values = numbers(count);                                                  \
        T* found = malloc(count * sizeof(T));                                             \
        if (!found) exit(2);                                                              \
        for (u32 i = 0; i < count; i++) store_##K(found + i, values[i]);                  \
        return found;                                                                     \
    }                                                                                     \
    static void pool_##K(u32 num_x, u32 num_y, const Shape* s) {                          \
        T *x = elements_##K(num_x), *y = elements_##K(num_y), *g = elements_##K(num_y);   \
        T *part = elements_##K(num_y), slope;                                             \
        for (u32 i = 0; i < num_x; i++) slope = pooled_##K(x, y, g, i, s), put(load_##K(&slope));    \
        for (u32 i = 0; i < num_x; i++) slope = pooled_##K(0, 0, part, i, s), put(load_##K(&slope)); \
    }

POOL(float, f32)
POOL(double, f64)
POOL(bf16, bf16)

static int norm(void) {
    Norm s;
    if (fread(&s, sizeof s, 1, stdin) != 1) return 1;
    double *x = numbers(s.rows * s.width), *alpha = numbers(s.width), *g = numbers(s.rows * s.width);
    double* stats = calloc(s.rows, 2 * sizeof *stats);
    double* sums = calloc(s.width, 2 * sizeof *sums);
    if (!stats || !sums) return 2;
    const u32 per = 32;
    double(*own)[32] = calloc(s.threads, sizeof *own), (*slopes)[32] = calloc(s.threads, sizeof *slopes);
    double* result = calloc(s.width, sizeof *result);
    if (!own || !slopes || !result) return 2;
    for (u32 row = 0; row < s.rows; row++) {
        u32 start = row * s.width;
        double mean = 0, level = 0, spread = 0, along = 0;
        for (u32 thread = 0; thread < s.threads; thread++)
            norm_read_f64(x + start, alpha, g + start, thread, per, own[thread], slopes[thread], &mean, &level, &s);
        mean /= s.width, level /= s.width;
        for (u32 thread = 0; thread < s.threads; thread++)
            norm_center_f64(mean, thread, per, own[thread], slopes[thread], &spread, &along, &s);
        double r = 1 / sqrt_f64(spread / s.width + s.eps);
        along *= r / s.width;
        for (u32 thread = 0; thread < s.threads; thread++)
            norm_write_f64(result, r, level, along, thread, per, own[thread], slopes[thread], &s);
        for (u32 i = 0; i < s.width; i++) put(result[i]);
        stats[2 * row] = mean, stats[2 * row + 1] = r;
    }
    for (u32 slice = 0; slice < s.slices; slice++) {
        for (u32 i = 0; i < s.width; i++) {
            for (u32 thread = 0; thread < 32; thread++) {
                double scale, shift;
                weight_slopes_f64(x, g, stats, i, slice, thread, &scale, &shift, &s);
                sums[i] += scale, sums[s.width + i] += shift;
            }
        }
    }
    for (u32 i = 0; i < 2 * s.width; i++) put(sums[i]);
    return 0;
}

int main(int num_arguments, char** arguments) {
    if (num_arguments > 1 && !strcmp(arguments[1], "norm")) return norm();
    Shape s;
    if (fread(&s, sizeof s, 1, stdin) != 1) return 1;
    u32 num_x = s.samples * s.groups * s.inputs * s.height * s.width;
    u32 num_w = s.groups * s.outputs * s.inputs * s.tall * s.wide;
    u32 num_y = s.samples * s.groups * s.outputs * s.rows * s.columns;
    if (num_arguments > 1) {
        if (!strcmp(arguments[1], "f32")) return pool_f32(num_x, num_y, &s), 0;
        if (!strcmp(arguments[1], "f64")) return pool_f64(num_x, num_y, &s), 0;
        if (!strcmp(arguments[1], "bf16")) return pool_bf16(num_x, num_y, &s), 0;
        if (strcmp(arguments[1], "columns")) return 4;
        u32 num_columns = s.groups * s.tall * s.wide * s.samples * s.rows * s.columns;
        double *x = numbers(num_x), *given = numbers(num_columns);
        for (u32 i = 0; i < num_columns; i++) put(seen_f64(x, i, &s));
        for (u32 i = 0; i < num_x; i++) put(folded_f64(given, i, &s));
        return 0;
    }
    double *x = numbers(num_x), *w = numbers(num_w), *g = numbers(num_y);
    for (u32 i = 0; i < num_y; i++) put(output_f64(x, w, i, &s));
    for (u32 i = 0; i < num_x; i++) put(input_gradient_f64(w, g, i, &s));
    for (u32 i = 0; i < num_w; i++) {
        double sums[256];
        for (u32 thread = 0; thread < 256; thread++) sums[thread] = weight_gradient_f64(x, g, i, thread, 256, &s);
        for (u32 half = 128; half > 0; half /= 2) {
            for (u32 thread = 0; thread < half; thread++) sums[thread] += sums[thread + half];
        }
        put(sums[0]);
    }
    for (u32 i = 0; i < num_x; i++) {
        bf16 rounded;
        store_bf16(&rounded, (float)x[i]);
        put(load_bf16(&rounded));
    }
    return 0;
}
