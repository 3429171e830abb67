#ifndef SARLITE_HANDLER_H
#define SARLITE_HANDLER_H

/* NumPy's PyDataMem_Handler, version 1 (NEP 49); of a stable layout. */
struct sar_handler {
    char name[127];
    uint8_t version;
    struct {
        void *context;
        void *(*malloc)(void *context, size_t size);
        void *(*calloc)(void *context, size_t n, size_t size);
        void *(*realloc)(void *context, void *block, size_t size);
        void (*free)(void *context, void *block, size_t size);
    } allocator;
};

#endif
