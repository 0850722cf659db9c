// The least, the largest, and the sum of every column of a matrix, in one reading of it.

// low, high and sums (parts, columns) of source (rows, columns), of which each part has `step` rows.
extern "C" __global__ void gather(const float* __restrict__ source, float* __restrict__ low,
                                  float* __restrict__ high, double* __restrict__ sums, long rows,
                                  long columns, long step) {
    long column = blockIdx.x * (long)blockDim.x + threadIdx.x, part = blockIdx.y;
    if (column >= columns) return;
    long end = min(rows, (part + 1) * step);
    float least = source[part * step * columns + column], most = least;
    double sum = 0.0;
#pragma unroll 8
    for (long row = part * step; row < end; row++) {
        float value = source[row * columns + column];
        least = fminf(least, value);
        most = fmaxf(most, value);
        sum += value;
    }
    long into = part * columns + column;
    low[into] = least;
    high[into] = most;
    sums[into] = sum;
}
