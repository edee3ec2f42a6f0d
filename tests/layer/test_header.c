/* test_header.c - owns that moewe.h stands alone, as strict C11 and as C++ (compiled as both), with the layout
 * that an ABI needs.  It must never include another header first. */
#include <moewe.h>

#ifdef __cplusplus
#define CHECK_STATIC static_assert
#define ENTRY        header_cxx
extern "C" int ENTRY(void);
#else
#define CHECK_STATIC _Static_assert
#define ENTRY        header_c
int ENTRY(void);
#endif

CHECK_STATIC(sizeof(moewe_status) == 4, "an enum of 32 bits");
CHECK_STATIC(offsetof(moewe_device_desc, struct_size) == 0, "descriptors start with struct_size");
CHECK_STATIC(offsetof(moewe_config, struct_size) == 0, "descriptors start with struct_size");
CHECK_STATIC(offsetof(moewe_weights, struct_size) == 0, "descriptors start with struct_size");
CHECK_STATIC(offsetof(moewe_io, struct_size) == 0, "descriptors start with struct_size");
CHECK_STATIC(offsetof(moewe_linear, struct_size) == 0, "descriptors start with struct_size");
CHECK_STATIC(offsetof(moewe_workspace_stats, struct_size) == 0, "descriptors start with struct_size");
CHECK_STATIC(sizeof(moewe_span) == 16 && sizeof(moewe_need) == 16, "no padding that a binding has to guess");
CHECK_STATIC(sizeof(moewe_config) % 8 == 0 && offsetof(moewe_config, workspace_limit) % 8 == 0, "no odd offsets");

int ENTRY(void)
{
    moewe_config cfg;
    moewe_io io;

    MOEWE_INIT(cfg);
    MOEWE_INIT(io);
    if (cfg.struct_size != sizeof cfg || io.struct_size != sizeof io) return 1;
    if (cfg.hidden != 0 || cfg.name != NULL || io.x != NULL) return 2;
    if (moewe_version() != (MOEWE_VERSION_MAJOR << 16 | MOEWE_VERSION_MINOR << 8 | MOEWE_VERSION_PATCH)) return 3;
    return moewe_last_error() == NULL ? 4 : 0; /* linked as C from either language */
}

#ifndef __cplusplus
int main(void)
{
    return header_c();
}
#else
int main()
{
    return header_cxx();
}
#endif
