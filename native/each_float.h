/* Includes KERNEL once for each value type T. NAME(op) is op_f32 or op_f64; LANES fills 64 bytes; FLOAT_BITS is 32 or 64. */
#define NAME(op) SAR_PASTE(op, SUFFIX)

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
