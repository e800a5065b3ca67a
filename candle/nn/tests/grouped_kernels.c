// The functions of the kernels, compiled for the processor: sizes, x, w and g as numbers come in; y, the gradients of x and w, and x as bf16 go out.

#include <stdio.h>
#include <stdlib.h>

#include "grouped.cu"

static double* numbers(size_t count) {
    double* found = malloc(count * sizeof(double));
    if (!found || fread(found, sizeof(double), count, stdin) != count) exit(2);
    return found;
}

static void put(double value) {
    if (fwrite(&value, sizeof value, 1, stdout) != 1) exit(3);
}

int main(void) {
    Shape s;
    if (fread(&s, sizeof s, 1, stdin) != 1) return 1;
    u32 num_x = s.samples * s.groups * s.inputs * s.height * s.width;
    u32 num_w = s.groups * s.outputs * s.inputs * s.tall * s.wide;
    u32 num_y = s.samples * s.groups * s.outputs * s.rows * s.columns;
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
