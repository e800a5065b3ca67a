//! Where to listen, as it is written.

use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// An address, or a port of this machine alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address(pub SocketAddr);

impl FromStr for Address {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let address = match text.parse::<u16>() {
            Ok(port) => Some((Ipv4Addr::LOCALHOST, port).into()),
            Err(_) => text.replace("localhost:", "127.0.0.1:").parse().ok(),
        };
        address.map(Self).ok_or("expected IP:PORT like 127.0.0.1:9464 or [::1]:9464, or a port alone like 9464")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_an_ip_with_a_port_or_a_port_alone() {
        for (text, expected) in [
            ("9464", Some("127.0.0.1:9464")),
            ("0", Some("127.0.0.1:0")),
            ("localhost:80", Some("127.0.0.1:80")),
            ("[::1]:80", Some("[::1]:80")),
            ("0.0.0.0:80", Some("0.0.0.0:80")),
            ("", None),
            ("99999", None),
            ("127.0.0.1", None),
            ("example.org:80", None),
            ("127.0.0.1:80/metrics", None),
        ] {
            let found = text.parse::<Address>().ok().map(|Address(address)| address.to_string());
            assert_eq!(found.as_deref(), expected, "{text:?}");
        }
    }
}
