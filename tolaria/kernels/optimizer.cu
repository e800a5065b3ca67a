// Updates of many parameters in one launch. What changes from step to step is read from device memory.

struct Parameters {
    u64 parameter[48];
    u64 moments[48];
    u64 offset[48];
    u64 length[48];
};

struct Settings {
    float value[5];
};

// settings: momentum, weight decay, 1 for Nesterov. constants: four numbers per parameter: learning rate, three unused.
extern "C" __global__ void sgd(Parameters p, Settings settings, const float* gradient, const float* constants) {
    float momentum = settings.value[0], weight_decay = settings.value[1];
    bool nesterov = settings.value[2] != 0.0f;
    float* parameter = (float*)p.parameter[blockIdx.y];
    float* velocity = (float*)p.moments[blockIdx.y];
    const float* g = gradient + p.offset[blockIdx.y];
    float learning_rate = constants[4 * blockIdx.y];
    for (u64 i = FIRST; i < p.length[blockIdx.y]; i += STRIDE) {
        float x = parameter[i];
        float update = g[i] + x * weight_decay;
        if (velocity) {
            float speed = velocity[i] * momentum + update;
            velocity[i] = speed;
            update = nesterov ? update + speed * momentum : speed;
        }
        parameter[i] = x - update * learning_rate;
    }
}

// settings: beta1, 1 - beta1, beta2, 1 - beta2, epsilon.
// constants: four numbers per parameter: what it is multiplied with, lr / (1 - beta1^t), 1 / sqrt(1 - beta2^t), unused.
extern "C" __global__ void adam_w(Parameters p, Settings settings, const float* gradient, const float* constants) {
    float beta1 = settings.value[0], rest1 = settings.value[1];
    float beta2 = settings.value[2], rest2 = settings.value[3], eps = settings.value[4];
    float* parameter = (float*)p.parameter[blockIdx.y];
    float* first = (float*)p.moments[blockIdx.y];
    float* second = first + p.length[blockIdx.y];
    const float* g = gradient + p.offset[blockIdx.y];
    const float* c = constants + 4 * blockIdx.y;
    float keep = c[0], step_size = c[1], root_correction = c[2];
    for (u64 i = FIRST; i < p.length[blockIdx.y]; i += STRIDE) {
        float m = first[i] * beta1 + g[i] * rest1;
        float v = second[i] * beta2 + (g[i] * g[i]) * rest2;
        first[i] = m;
        second[i] = v;
        float root = sqrtf(v) * root_correction + eps;
        parameter[i] = parameter[i] * keep - m / root * step_size;
    }
}
