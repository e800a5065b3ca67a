// Scales of the loss, by domain; src/trainer/loss_scale.rs has the same for the CPU.

// state (2 x domains): scales, and good steps in a row. A domain was finite when the factor of its probe is a number.
extern "C" __global__ void move_scales(
    float* state, const float* factors, const u32* probes, u32 domains, float growth_steps, float largest, float smallest) {
    WAIT_FOR_INPUTS;
    for (u64 domain = FIRST; domain < domains; domain += STRIDE) {
        if (probes[domain] == 0xffffffffu) continue;
        float scale = state[domain], good = state[domains + domain] + 1.0f;
        if (isnan(factors[probes[domain]])) {
            scale = fmaxf(scale * 0.5f, smallest);
            good = 0.0f;
        } else if (good >= growth_steps) {
            scale = fminf(scale * 2.0f, largest);
            good = 0.0f;
        }
        state[domain] = scale;
        state[domains + domain] = good;
    }
}
