/* Transformer Engine 2.13 to 2.16 is built against a newer cuBLAS than torch 2.11 brings and is loaded with every symbol
   bound at once. The one that is absent belongs to grouped matrix products: say that they are not supported here. */
int cublasLtGroupedMatrixLayoutInit_internal(void *layout, unsigned long size, int type, int groups, const void *rows,
                                             const void *columns, const void *leading) {
    (void)layout, (void)size, (void)type, (void)groups, (void)rows, (void)columns, (void)leading;
    return 15; /* CUBLAS_STATUS_NOT_SUPPORTED */
}
