// The convolution of a layer on a GPU, of maps and image side by side, normalized on the way in.
// The host defines FIRST and SECOND (channels of either), FILTERS, OF (how many filters there are in
// all), SIZE (of a filter), HEIGHT, WIDTH, and how the work is cut: a block of threads makes all
// FILTERS of TILE_ROWS × TILE_COLUMNS pixels, each thread four filters of LINE neighbors in a row;
// DEPTH channels are held at a time.

#define GROUPS ((FILTERS + 3) / 4)
#define LINES (TILE_COLUMNS / LINE)
#define IN_ROWS (TILE_ROWS + SIZE - 1)
#define IN_COLUMNS (TILE_COLUMNS + SIZE - 1)
#define BEFORE ((SIZE - 1) / 2)

// maps (n, H, W, FILTERS of OF) of some channels (count,) of first (n, H, W, FIRST) and second
// (n, H, W, SECOND), counted through both, normalized as (… − low)·scale, with weights
// (SIZE, SIZE, count, 4·GROUPS) and bias (4·GROUPS,), filled up with zeros.
extern "C" __global__ void __launch_bounds__(GROUPS * TILE_ROWS * LINES)
convolve(const float* __restrict__ first, const float* __restrict__ second,
         const int* __restrict__ channels, int count, const float* __restrict__ low,
         const float* __restrict__ scale, const float4* __restrict__ weights,
         const float4* __restrict__ bias, float* __restrict__ maps) {
    __shared__ float inputs[DEPTH][IN_ROWS][IN_COLUMNS + 1];
    __shared__ float4 filters[DEPTH][SIZE][SIZE][GROUPS];
    const long image = blockIdx.z;
    const int top = blockIdx.y * TILE_ROWS, left = blockIdx.x * TILE_COLUMNS;
    const int thread = threadIdx.x, threads = GROUPS * TILE_ROWS * LINES;
    const int group = thread % GROUPS, place = thread / GROUPS;
    const int row = place / LINES, column = place % LINES * LINE;
    float4 sums[LINE];
#pragma unroll
    for (int p = 0; p < LINE; p++) sums[p] = make_float4(0, 0, 0, 0);
    for (int begin = 0; begin < count; begin += DEPTH) {
        __syncthreads();
        for (int t = thread; t < DEPTH * IN_ROWS * IN_COLUMNS; t += threads) {
            int c = begin + t % DEPTH, x = t / DEPTH % IN_COLUMNS, y = t / DEPTH / IN_COLUMNS;
            int from_y = top + y - BEFORE, from_x = left + x - BEFORE;
            float value = 0;
            if (c < count && from_y >= 0 && from_y < HEIGHT && from_x >= 0 && from_x < WIDTH) {
                long pixel = (image * HEIGHT + from_y) * WIDTH + from_x;
                int channel = channels[c];
                value = channel < FIRST ? first[pixel * FIRST + channel]
                                        : second[pixel * SECOND + channel - FIRST];
                value = (value - low[c]) * scale[c];
            }
            inputs[t % DEPTH][y][x] = value;
        }
        for (int t = thread; t < DEPTH * SIZE * SIZE * GROUPS; t += threads) {
            int g = t % GROUPS, tap = t / GROUPS % (SIZE * SIZE), c = t / GROUPS / (SIZE * SIZE);
            bool there = begin + c < count;
            filters[c][tap / SIZE][tap % SIZE][g] =
                there ? weights[(tap * count + begin + c) * GROUPS + g]
                      : make_float4(0, 0, 0, 0);
        }
        __syncthreads();
#pragma unroll 1
        for (int c = 0; c < DEPTH; c++)
#pragma unroll(SIZE <= 3 ? SIZE : 1)
            for (int down = 0; down < SIZE; down++) {
                float line[LINE + SIZE - 1];
#pragma unroll
                for (int x = 0; x < LINE + SIZE - 1; x++)
                    line[x] = inputs[c][row + down][column + x];
#pragma unroll
                for (int right = 0; right < SIZE; right++) {
                    float4 w = filters[c][down][right][group];
#pragma unroll
                    for (int p = 0; p < LINE; p++) {
                        sums[p].x = fmaf(line[p + right], w.x, sums[p].x);
                        sums[p].y = fmaf(line[p + right], w.y, sums[p].y);
                        sums[p].z = fmaf(line[p + right], w.z, sums[p].z);
                        sums[p].w = fmaf(line[p + right], w.w, sums[p].w);
                    }
                }
            }
    }
    float4 add = bias[group];
    int y = top + row;
    if (y >= HEIGHT) return;
#pragma unroll
    for (int p = 0; p < LINE; p++) {
        int x = left + column + p;
        if (x >= WIDTH) break;
        float* into = maps + ((image * HEIGHT + y) * WIDTH + x) * OF + 4 * group;
        if (4 * group < FILTERS) into[0] = sums[p].x + add.x;
        if (4 * group + 1 < FILTERS) into[1] = sums[p].y + add.y;
        if (4 * group + 2 < FILTERS) into[2] = sums[p].z + add.z;
        if (4 * group + 3 < FILTERS) into[3] = sums[p].w + add.w;
    }
}
