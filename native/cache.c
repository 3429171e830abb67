/* The directory of a cache of rows: the row in each line, and the step that computed the row. The same code serves every
 * instruction set.
 *
 * lines (n_lines + 1) form a linked ring, oldest first: ordered by `made`, and lines with the same `made` in the order of
 * storing. The last element of the array is not a line but the head of the ring: its `newer` is the oldest line, its
 * `older` the newest. Empty lines have made = -1 and halo = -1, so they are the oldest. A run is the lines with the same
 * `made`. The first and the last line of a run refer to each other in `end`, so that a search skips whole runs.
 * place (n_halo) is the line of each row, or -1. place[lines[l].halo] == l for every line l that is not empty.
 */
#include "sarlite.h"

#define CACHE_BLOCK 16          /* lines whose rows one thread writes */
#define CACHE_AHEAD 8           /* rows that are looked for while others are stored */

/* Remove a line from the ring. */
static void cache_leave(struct sar_line *lines, int32_t line)
{
    int32_t older = lines[line].older, newer = lines[line].newer;
    int first = lines[older].made != lines[line].made, last = lines[newer].made != lines[line].made;
    if (first != last) {        /* its run has a new end */
        int32_t end = lines[line].end, next = first ? newer : older;
        lines[next].end = end;
        lines[end].end = next;
    }
    lines[older].newer = newer;
    lines[newer].older = older;
}

/* Insert a line into the ring, after all lines that are as old or older. */
static void cache_join(struct sar_line *lines, int32_t line, int64_t made, int32_t head)
{
    int32_t older = lines[head].older;
    while (lines[older].made > made) older = lines[lines[older].end].older;     /* the head's `made` ends this */
    lines[line].made = made;
    lines[line].end = line;
    if (lines[older].made == made) {
        lines[line].end = lines[older].end;
        lines[lines[older].end].end = line;
    }
    lines[line].older = older;
    lines[line].newer = lines[older].newer;
    lines[lines[older].newer].older = line;
    lines[older].newer = line;
}

/* Make all lines empty.
 *
 * output   lines (n_lines + 1), place (n_halo), overwritten
 * cost     O(n_lines + n_halo)
 */
int sar_cache_clear(struct sar_line *restrict lines, int32_t *restrict place, int64_t n_lines, int64_t n_halo)
{
    int team = sar_team(4 * (n_lines + n_halo));
    lines[n_lines] = (struct sar_line){INT64_MIN, -1, (int32_t)n_lines, (int32_t)n_lines, (int32_t)n_lines};
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t l = 0; l < n_lines; l++)
        lines[l] = (struct sar_line){-1, -1, (int32_t)(l ? l - 1 : n_lines), (int32_t)(l + 1), (int32_t)(l ? 0 : n_lines - 1)};
    if (n_lines) {
        lines[n_lines].newer = 0;
        lines[n_lines].older = (int32_t)(n_lines - 1);
    }
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t h = 0; h < n_halo; h++) place[h] = -1;
    return SAR_OK;
}

/* Assign a line to each row, one after another: the line that already holds the row, else the oldest line, whose row is
 * evicted. The row then counts as the newest of the rows with the same `made`.
 *
 * inputs   halo (n) within 0 .. n_halo, made (n) >= 0; n_lines > 0 where n > 0
 * output   taken (n): each row's line, overwritten; a later row may have been given the same. lines, place updated
 * cost     O(n), and for each row one step for each newer run
 */
int sar_cache_store(int32_t *restrict taken, struct sar_line *restrict lines, int32_t *restrict place, const int32_t *restrict halo,
                    const int64_t *restrict made, int64_t n_lines, int64_t n)
{
    int32_t head = (int32_t)n_lines;
    for (int64_t k = 0; k < n; k++) {
        if (k + 2 * CACHE_AHEAD < n) SAR_PREFETCH_NEAR(place + halo[k + 2 * CACHE_AHEAD]);
        if (k + CACHE_AHEAD < n && place[halo[k + CACHE_AHEAD]] >= 0) SAR_PREFETCH_NEAR(lines + place[halo[k + CACHE_AHEAD]]);
        int32_t line = place[halo[k]];
        if (line < 0) {
            line = lines[head].newer;
            if (lines[line].halo >= 0) place[lines[line].halo] = -1;
            lines[line].halo = halo[k];
            place[halo[k]] = line;
        }
        cache_leave(lines, line);
        cache_join(lines, line, made[k], head);
        taken[k] = line;
    }
    return SAR_OK;
}

/* rows[taken[k],:] = from[k,:]; if entries of `taken` are equal, the last one wins.
 *
 * inputs   from (n, row_bytes), taken (n)
 * output   rows (lines, row_bytes), overwritten where taken
 * cost     O(n * row_bytes), and each thread, which owns blocks of lines, reads `taken`
 */
int sar_cache_write(uint8_t *restrict rows, const uint8_t *restrict from, const int32_t *restrict taken, int64_t n, int64_t row_bytes)
{
    int team = sar_team(n * row_bytes / 4);
#pragma omp parallel num_threads(team)
    {
        int32_t rank = (int32_t)sar_team_rank(), size = (int32_t)sar_team_size();
        for (int64_t k = 0; k < n; k++)
            if (taken[k] / CACHE_BLOCK % size == rank) memcpy(rows + taken[k] * row_bytes, from + k * row_bytes, (size_t)row_bytes);
    }
    return SAR_OK;
}

/* found[k] = the line of row halo[k], or -1 if the row has no line or was computed more than `life` steps before `now`.
 *
 * inputs   halo (n) within 0 .. n_halo, now >= 0
 * output   found (n), overwritten
 * cost     O(n)
 */
int sar_cache_lookup(int32_t *restrict found, const struct sar_line *restrict lines, const int32_t *restrict place,
                     const int32_t *restrict halo, int64_t now, int64_t life, int64_t n)
{
    int team = sar_team(8 * n);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t k = 0; k < n; k++) {
        int32_t line = place[halo[k]];
        found[k] = line >= 0 && now - lines[line].made <= life ? line : -1;
    }
    return SAR_OK;
}

/* List the lines that are not empty, oldest first.
 *
 * output   order (n_lines): its first *n are overwritten
 * cost     O(n_lines)
 */
int sar_cache_order(int32_t *restrict order, int64_t *restrict n, const struct sar_line *restrict lines, int64_t n_lines)
{
    *n = 0;
    for (int32_t line = lines[n_lines].newer; line != n_lines; line = lines[line].newer)
        if (lines[line].halo >= 0) order[(*n)++] = line;
    return SAR_OK;
}
