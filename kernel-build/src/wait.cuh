// How every kernel begins. What comes after it in a graph may take its place on the device once all blocks of this one have begun,
// and this one waits there until all that it comes after is over and seen: nothing of it may stand before.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define WAIT_FOR_INPUTS asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory")
#else
#define WAIT_FOR_INPUTS
#endif
