//! Compiles the kernels of this crate for the feature `cuda`.

fn main() {
    kernel_build::run("all.cu", "graph.fatbin");
}
