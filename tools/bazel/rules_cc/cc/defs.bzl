"""Stands in for rules_cc, of which Debian's is too new for Debian's Bazel 4.2.

The C++ rules are Bazel's own there; the rest is what Bazel's tools load.
"""

cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_proto_library = native.cc_proto_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
fdo_profile = native.fdo_profile
objc_import = native.objc_import
objc_library = native.objc_library

def cc_flags_supplier(**_kwargs):
    pass

def compiler_flag(**_kwargs):
    pass
