/* An allocator for NumPy's arrays (NEP 49) that notes each block and when it is freed; `malloc` gives the memory. Nothing here calls
 * Python: an array may be freed while an exception is on its way, which Python that runs then would lose.
 *
 * As of buffers, the end of NumPy's capsule is the recorder's. */
#define _DEFAULT_SOURCE
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>
#include "sarlite.h"
#include "handler.h"
#include <pthread.h>
#include <stdlib.h>

#define LINE 64                 /* stands before a block, and has its number */
#define FREED (-1)              /* in place of a size */
#define FIRST_ROOM 1024

struct sar_recorder {
    struct sar_handler handler; /* first: NumPy gets its address */
    pthread_mutex_t lock;
    int64_t *events;            /* n pairs (number, size), in order */
    int64_t n, room, n_made;
    int closed, lost;           /* nobody asks for events any more; there was no memory for one */
};

static void note(struct sar_recorder *r, int64_t number, int64_t size)
{
    if (r->closed || r->lost) return;
    if (r->n == r->room) {
        int64_t room = r->room ? 2 * r->room : FIRST_ROOM;
        int64_t *events = realloc(r->events, (size_t)room * 2 * sizeof *events);
        r->lost = !events;
        if (!events) return;
        r->events = events, r->room = room;
    }
    r->events[2 * r->n] = number, r->events[2 * r->n + 1] = size;
    r->n++;
}

/* Number a block whose memory begins a line before it. */
static void *made(struct sar_recorder *r, char *start, size_t size)
{
    if (!start) return NULL;
    pthread_mutex_lock(&r->lock);
    *(int64_t *)start = r->n_made;
    note(r, r->n_made++, (int64_t)size);
    pthread_mutex_unlock(&r->lock);
    return start + LINE;
}

static void *recorder_malloc(void *context, size_t size)
{
    return size > SIZE_MAX / 2 ? NULL : made(context, malloc(size + LINE), size);
}

static void *recorder_calloc(void *context, size_t n, size_t size)
{
    if (size && n > (SIZE_MAX / 2) / size) return NULL;
    return made(context, calloc(1, n * size + LINE), n * size);
}

static void recorder_free(void *context, void *block, size_t size)
{
    struct sar_recorder *r = context;
    char *start = block ? (char *)block - LINE : NULL;
    (void)size;
    if (!start) return;
    pthread_mutex_lock(&r->lock);
    note(r, *(int64_t *)start, FREED);
    pthread_mutex_unlock(&r->lock);
    free(start);
}

/* Another block, and the one before is free. */
static void *recorder_realloc(void *context, void *block, size_t size)
{
    struct sar_recorder *r = context;
    if (!block) return recorder_malloc(context, size);
    if (size > SIZE_MAX / 2) return NULL;
    int64_t before = *(int64_t *)((char *)block - LINE);
    char *found = made(r, realloc((char *)block - LINE, size + LINE), size);
    if (!found) return NULL;
    pthread_mutex_lock(&r->lock);
    note(r, before, FREED);
    pthread_mutex_unlock(&r->lock);
    return found;
}

/* A new recorder, or NULL without memory. Its address is that of a PyDataMem_Handler, for a capsule that sar_recorder_end destroys. */
struct sar_recorder *sar_recorder_open(void)
{
    struct sar_recorder *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->handler = (struct sar_handler){"sarlite recorder", 1, {r, recorder_malloc, recorder_calloc, recorder_realloc, recorder_free}};
    pthread_mutex_init(&r->lock, NULL);
    return r;
}

/* Note nothing more: blocks that outlive this are `malloc`'s. */
void sar_recorder_close(struct sar_recorder *r)
{
    pthread_mutex_lock(&r->lock);
    free(r->events);
    r->events = NULL, r->n = r->room = 0, r->closed = 1;
    pthread_mutex_unlock(&r->lock);
}

/* The destructor of the capsule. */
void sar_recorder_end(void *capsule)
{
    struct sar_recorder *r = PyCapsule_GetPointer(capsule, "mem_handler");
    pthread_mutex_destroy(&r->lock);
    free(r->events);
    free(r);
}

/* How many events nobody has taken, or -1 where there was no memory for one. */
int64_t sar_recorder_count(struct sar_recorder *r)
{
    pthread_mutex_lock(&r->lock);
    int64_t n = r->lost ? -1 : r->n;
    pthread_mutex_unlock(&r->lock);
    return n;
}

/* Move the first events, at most `room`, to (room, 2) `events`: the number of a block and its size in bytes, -1 as it is freed. Returns how
 * many. */
int64_t sar_recorder_take(struct sar_recorder *r, int64_t *events, int64_t room)
{
    pthread_mutex_lock(&r->lock);
    int64_t n = r->n < room ? r->n : room;
    if (n) {
        memcpy(events, r->events, (size_t)n * 2 * sizeof *events);
        memmove(r->events, r->events + 2 * n, (size_t)(r->n - n) * 2 * sizeof *events);
        r->n -= n;
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}
