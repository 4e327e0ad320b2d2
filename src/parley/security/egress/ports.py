"""Ports that a request which others cause does not go to, unless the operator names them.

The lines of an HTTP request are commands for servers of simple protocols (mail, Redis, memcached),
and whoever names a URL chooses some of these lines. So the ports of protocols that take such lines,
of databases, and of the control planes of machines are closed; a web server is seldom there.
"""

_OF_OTHERS = frozenset(
    {
        7, 13, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 79, 87, 95,
        # echo to quote, FTP, SSH, Telnet, SMTP, time, WINS, whois, DNS, TFTP, finger
        101, 102, 103, 104, 109, 110, 111, 113, 115, 117, 119, 123, 135, 137, 138, 139,
        143, 161, 162, 179, 194, 220, 389, 427, 445, 465, 464,
        # POP, portmapper, ident, NNTP, NTP, NetBIOS, IMAP, SNMP, BGP, LDAP, SLP, SMB, Kerberos
        512, 513, 514, 515, 526, 530, 531, 532, 540, 543, 544, 548, 554, 556, 563, 587,
        601, 623, 631, 636, 646, 666, 847, 860, 873, 989, 990, 992, 993, 995,
        # rexec, rlogin, syslog, printing, AFP, RTSP, mail submission, IPMI, rsync, FTPS, IMAPS
        1433, 1434, 1521, 1719, 1720, 1723,  # SQL Server, Oracle, H.323, PPTP
        2049, 2181, 2375, 2376, 2379, 2380,  # NFS, ZooKeeper, Docker, etcd
        3268, 3269, 3306, 3389,  # LDAP catalogs, MySQL, RDP
        4045, 4190, 4222, 4369,  # NFS locks, Sieve, NATS, Erlang
        5060, 5061, 5222, 5432, 5672, 5900,  # SIP, XMPP, PostgreSQL, AMQP, VNC
        6000, 6379, 6432, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697,  # X11, Redis, SANE, IRC
        9042, 9092, 10080, 10250, 10255, 11211, 26379, 27017, 27018, 27019,
        # Cassandra, Kafka, Amanda, kubelet, memcached, Redis Sentinel, MongoDB
    }
)  # fmt: skip


def is_of_other_protocols(port: int) -> bool:
    """Return whether a port is that of another protocol than HTTP. 0 stands for no port."""
    return port in _OF_OTHERS
