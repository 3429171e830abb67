/* Includes KERNEL once for each value type T. NAME(op) is op_f32_<isa> or op_f64_<isa>; LANES fills 64 bytes;
 * FLOAT_BITS is 32 or 64. */
#define NAME(op) SAR_PASTE(op, SUFFIX, ISA)

#define T float
#define LANES 16
#define FLOAT_BITS 32
#define SUFFIX _f32
#include KERNEL
#undef T
#undef LANES
#undef FLOAT_BITS
#undef SUFFIX

#define T double
#define LANES 8
#define FLOAT_BITS 64
#define SUFFIX _f64
#include KERNEL
#undef T
#undef LANES
#undef FLOAT_BITS
#undef SUFFIX

#undef NAME
#undef KERNEL
