// The contract of networks over TCP sockets: one socket per connection, several, helper threads,
// IPv6, checksums and encryption.

#include "transport/testing/net_contract.h"

#include "transport/testing/socket_net_pair.h"

namespace tutti {
namespace {

class SocketNetContract : public NetContract {};
TEST_P(SocketNetContract, Holds) { Run(); }
INSTANTIATE_TEST_SUITE_P(OneSocket, SocketNetContract,
                         NetContractCasesFor(SocketFactory("OneSocket", 1, 1)),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(Striped, SocketNetContract,
                         NetContractCasesFor(SocketFactory("Striped", 1, 3)), NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(Threads, SocketNetContract,
                         NetContractCasesFor(SocketFactory("Threads", 2, 2)), NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(Ipv6, SocketNetContract,
                         NetContractCasesFor(SocketFactory("Ipv6", 1, 1, "[::1]:0")),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(Checked, SocketNetContract,
                         NetContractCasesFor(SocketFactory("Checked", 2, 2, "127.0.0.1:0",
                                                           Sealing::kChecksum)),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(Encrypted, SocketNetContract,
                         NetContractCasesFor(SocketFactory("Encrypted", 1, 1, "127.0.0.1:0",
                                                           Sealing::kEncryption)),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(EncryptedWithoutAes, SocketNetContract,
                         NetContractCasesFor(SocketFactory("EncryptedWithoutAes", 1, 1,
                                                           "127.0.0.1:0", Sealing::kEncryption,
                                                           /*both_have_aes=*/false)),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(EncryptedStripes, SocketNetContract,
                         NetContractCasesFor(SocketFactory("EncryptedStripes", 1, 3, "127.0.0.1:0",
                                                           Sealing::kEncryption)),
                         NetContractCaseName);

}  // namespace
}  // namespace tutti
